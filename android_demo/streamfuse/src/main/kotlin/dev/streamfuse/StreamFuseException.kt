package dev.streamfuse

/** The error codes of core/streamfuse_core.h, and six of this library. */
public enum class ErrorCode(internal val value: Int?) {
    /**
     * Invalid numbers or text from the caller: a range, a length, an unknown name, a completion's prompt that is longer
     * than the context.
     */
    BAD_ARGUMENT(1),

    /** A graph file is missing, damaged, not what the manifest says, or made for another engine. */
    BAD_PROGRAM(2),

    /** A graph needs an operator or backend that this library does not contain. */
    MISSING_OPERATOR(3),

    /** A chat's question does not fit into the context: [ContextPolicy]. */
    CONTEXT_FULL(4),

    /** Rows to commit were pruned. */
    NOT_KEPT(5),

    /** The engine reported an error while it ran. */
    EXECUTION(6),

    /** Out of memory. */
    OUT_OF_MEMORY(7),

    /** An internal check failed: close this chat. */
    BROKEN(8),

    /** The drafting tables are inconsistent, or do not match the model. */
    BAD_TABLES(9),

    /** A bundle or a saved chat is missing, damaged, or not of this kind. */
    BAD_FILE(10),

    /** A JSON schema, regular expression or grammar is invalid, not supported or too large. */
    BAD_GRAMMAR(11),

    /**
     * [Session.stop] or another request ended a [Session.score]. If its coroutine is cancelled, a score throws
     * CancellationException instead, and so does [StreamFuse.load].
     */
    CANCELLED(12),

    /** The text of an answer is not an object of the requested class: [Answer.parsed]. */
    NOT_PARSED(null),

    /** The model or the session is closed. */
    CLOSED(null),

    /**
     * A server or the connection to it failed; [StreamFuseException.isTemporary] says whether to try again. A download
     * then goes on from where it ended.
     */
    NETWORK(null),

    /** The disk has too little free space for a bundle. */
    NO_SPACE(null),

    /** The same contents are being downloaded already. */
    BUSY(null),

    /** The native library cannot be loaded: it is not built for this processor. See [StreamFuse.isSupported]. */
    UNSUPPORTED(null),
    ;

    internal companion object {
        fun of(value: Int): ErrorCode = entries.firstOrNull { it.value == value } ?: BROKEN
    }
}

/**
 * A failure of the library; [message] is one sentence that names the object, the limit and the next step.
 *
 * @property code the error code.
 * @property isTemporary whether the same call may succeed later; only with [ErrorCode.NETWORK]. True for a connection
 *   that fails or is silent for too long, an incomplete answer, and the statuses 5xx, 408 and 429. False for other
 *   statuses, and for a redirect to an address that is not allowed.
 */
public class StreamFuseException(
    public val code: ErrorCode,
    sentence: String,
    public val isTemporary: Boolean = false,
) : RuntimeException(sentence)
