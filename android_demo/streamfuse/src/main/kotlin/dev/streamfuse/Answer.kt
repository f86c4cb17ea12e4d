package dev.streamfuse

import kotlinx.serialization.DeserializationStrategy
import kotlinx.serialization.serializer

/**
 * A whole answer: [Session.generate].
 *
 * @property text the text for the reader: the pieces of [Channel.ANSWER].
 * @property thinking what the model wrote before it: the pieces of [Channel.THINKING].
 * @property tokens the ids of all its tokens.
 * @property toolCalls its tool calls that were not answered: see [Model.chat], `maxToolRounds`.
 * @property statistics counters and times.
 * @property logProbs the log-probability of each of [tokens] ([Piece.logProb]); empty unless
 *   [GenerationConfig.logProbs] or [GenerationConfig.topLogProbs] is set.
 * @property topLogProbs the most probable tokens at the position of each of [tokens] ([Piece.topLogProbs]); empty unless
 *   [GenerationConfig.topLogProbs] is set.
 */
public class Answer internal constructor(
    public val text: String,
    public val thinking: String,
    public val tokens: List<Int>,
    public val toolCalls: List<ToolCall>,
    public val statistics: Statistics,
    public val logProbs: List<Double> = emptyList(),
    public val topLogProbs: List<List<TokenLogProb>> = emptyList(),
) {
    /**
     * The object that the answer to a request with [GenerationConfig.schema] spells.
     *
     * @throws StreamFuseException ([ErrorCode.NOT_PARSED]) if the answer ended before the object was complete, or does
     *   not fit the class.
     */
    public inline fun <reified T> parsed(): T = parsed(serializer<T>())

    /**
     * [parsed] with a given deserializer.
     *
     * @throws StreamFuseException ([ErrorCode.NOT_PARSED]) as the other function of this name.
     */
    public fun <T> parsed(deserializer: DeserializationStrategy<T>): T {
        val tokens = "${statistics.generatedTokens} tokens"
        when (statistics.finishReason) { // a text that ended early may decode, as 12 of 123
            "incomplete" -> throw notParsed(
                "the answer is incomplete: it ended after $tokens, before its object did; raise " +
                    "GenerationConfig.maxNewTokens, begin a new chat if the context is full, or bound the strings and " +
                    "lists of the schema (@Keywords with maxLength, maxItems)",
            )
            "stopped" -> throw notParsed(
                "the answer was stopped after $tokens, before its object was complete; ask again",
            )
        }
        try {
            return structured.decodeFromString(deserializer, text)
        } catch (error: IllegalArgumentException) { // a SerializationException, or of a class that refuses its values
            val sentence = "the answer does not fit the class: ${error.message}; ask with the schema of the class, " +
                "GenerationConfig(schema = schemaOf<...>())"
            throw notParsed(sentence).apply { initCause(error) }
        }
    }

    private fun notParsed(sentence: String) = StreamFuseException(ErrorCode.NOT_PARSED, sentence)

    /** The [text]. */
    override fun toString(): String = text
}
