package dev.streamfuse

import kotlinx.serialization.SerialName
import kotlinx.serialization.Serializable

/** Who proposed a token. The order is that of the core's numbers. */
public enum class Source {
    /** The model itself: nobody had drafted it. */
    MODEL,

    /** The model's own streams. */
    STREAMS,

    /** A passage of the text so far that began alike. */
    LOOKUP,

    /** The bundle's n-gram table. */
    TABLE,
}

/**
 * A step of an answer.
 *
 * @property text what this token completes: often nothing, sometimes more than the token itself, never part of a
 *   character.
 * @property token its id. Null in a last piece that is only text: it was held back as the possible beginning of a stop
 *   string.
 * @property source who proposed the token.
 */
public data class Piece(val text: String, val token: Int?, val source: Source = Source.MODEL) {
    /** Whether the token was drafted and then accepted by the model. */
    public val drafted: Boolean get() = source != Source.MODEL
}

/** Who says something in a conversation. */
@Serializable
public enum class Role {
    /** Instructions to the model. */
    @SerialName("system")
    SYSTEM,

    /** The person who asks. */
    @SerialName("user")
    USER,

    /** The model. */
    @SerialName("assistant")
    ASSISTANT,
}

/**
 * A turn of a conversation.
 *
 * @property role who says it.
 * @property content what is said.
 */
@Serializable
public data class Message(val role: Role, val content: String)
