package dev.streamfuse

import kotlinx.serialization.SerialName
import kotlinx.serialization.Serializable

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
}

/**
 * A step of an answer.
 *
 * @property text text that this token completes: often empty, sometimes more than the token itself, never part of a
 *   character.
 * @property token its id; null in a last piece of text that was held back as the possible beginning of a stop string.
 * @property source the source of the token.
 */
public data class Piece(val text: String, val token: Int?, val source: Source = Source.MODEL) {
    /** Whether the token was drafted and then accepted by the model. */
    public val drafted: Boolean get() = source != Source.MODEL
}

/** The role of a turn in a conversation. */
@Serializable
public enum class Role {
    /** Instructions to the model. */
    @SerialName("system")
    SYSTEM,

    /** The user. */
    @SerialName("user")
    USER,

    /** The model. */
    @SerialName("assistant")
    ASSISTANT,
}

/**
 * A turn of a conversation.
 *
 * @property role the role of the speaker.
 * @property content the text of the turn.
 */
@Serializable
public data class Message(val role: Role, val content: String)
