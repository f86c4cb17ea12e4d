package dev.streamfuse

/** The source of a token, in the order of the core's constants. */
public enum class Source {
    /** The model itself; the token was not drafted. */
    MODEL,

    /** The model's own streams. */
    STREAMS,

    /** Prompt look-up: an earlier occurrence of the last tokens. */
    LOOKUP,

    /** The bundle's n-gram table. */
    TABLE,

    /** The constraint of the answer, which forces the token: [GenerationConfig.schema] and the like. */
    GRAMMAR,

    /** Look-up in earlier answers: [Options.memoryFile]. */
    MEMORY,
}

/** What a piece's text is part of, in the order of the native side's constants. */
public enum class Channel {
    /** The answer. */
    ANSWER,

    /** What the model writes before it answers, between tags such as `<think>` and `</think>`. */
    THINKING,

    /** A tool call, in the form of the model's family. [Chat.toolCalls] has the calls. */
    TOOL_CALL,
}

/**
 * A token that could have been chosen.
 *
 * @property token its id.
 * @property logProb natural logarithm of its probability, as [Piece.logProb].
 * @property text its text (U+FFFD for part of a character), or the name of a special token.
 */
public data class TokenLogProb(val token: Int, val logProb: Double, val text: String)

/**
 * A step of an answer.
 *
 * @property text text that this token completes: often empty, sometimes more than the token itself, never part of a
 *   character.
 * @property token its id; null in a piece of text that was held back as the possible beginning of a stop string or tag.
 * @property source the source of the token.
 * @property channel what the text is part of. Only [Channel.ANSWER] is for the reader.
 * @property logProb natural logarithm of the model's probability of the token: softmax over the whole vocabulary, before
 *   temperature, filters, penalty and constraint. Null unless [GenerationConfig.logProbs] or
 *   [GenerationConfig.topLogProbs] is set, or without a token.
 * @property topLogProbs the [GenerationConfig.topLogProbs] most probable tokens at this position, best first, ties by the
 *   smaller id. A token that was sampled or constrained may be none of them.
 */
public data class Piece(
    val text: String,
    val token: Int?,
    val source: Source = Source.MODEL,
    val channel: Channel = Channel.ANSWER,
    val logProb: Double? = null,
    val topLogProbs: List<TokenLogProb> = emptyList(),
) {
    /** Whether the token was drafted and then accepted by the model. */
    public val drafted: Boolean get() = source != Source.MODEL
}
