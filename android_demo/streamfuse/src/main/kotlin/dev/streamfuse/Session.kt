package dev.streamfuse

import java.io.File
import kotlinx.coroutines.flow.Flow

/**
 * A sequence of tokens with a cache of its own, that answers one request at a time. Any thread may use it.
 *
 * An answer may be ended early at any token: by leaving the flow, cancelling its coroutine, [stop], [save], [restore],
 * [reset] or [close]. What was delivered counts, and the next request goes on from there. But for leaving and
 * cancelling, the flow then completes normally, and [statistics] has the finish reason `stopped`.
 *
 * Its functions throw [IllegalStateException] once it is closed.
 */
public sealed class Session : AutoCloseable {
    /** What the last answer took; null before the first one has ended. It can be read after [close]. */
    public val statistics: Statistics? get() = TODO()

    /** Why the last answer was not drafted, in whole or in part; null where it was. */
    public val fallbackReason: String? get() = statistics?.fallbackReason

    /**
     * Asks; the answer comes in pieces while it is written. Each collection of the flow asks anew.
     *
     * The work runs on [Options.dispatcher], whatever the collector runs on. The next token is computed when the collector
     * has dealt with the last, so that leaving is exact; add `.buffer()` to let the model run ahead.
     *
     * The flow fails with [IllegalStateException] where another answer is being written or the session is closed, and with
     * [StreamFuseException] where the request is refused or the engine fails. A refused request changes nothing.
     *
     * @param config what differs from the session's defaults.
     */
    public fun send(text: String, config: GenerationConfig = GenerationConfig()): Flow<Piece> = TODO()

    /**
     * Asks, and reports to [callback] from [Options.dispatcher]; returns at once.
     *
     * @throws IllegalStateException where another answer is being written or the session is closed.
     */
    @JvmOverloads
    public fun send(text: String, callback: GenerationCallback, config: GenerationConfig = GenerationConfig()): Unit = TODO()

    /** Asks, and waits for the whole answer. Fails as the flow of [send] does. */
    public suspend fun generate(text: String, config: GenerationConfig = GenerationConfig()): String = TODO()

    /** Ends the answer that is being written at its next token. It returns at once; nothing happens where none is written. */
    public fun stop(): Unit = TODO()

    /** Forgets all tokens, and all turns but the system message. */
    public fun reset(): Unit = TODO()

    /**
     * Writes cache, tokens and conversation to [file], in one piece or not at all. An answer that is being written ends
     * here. The file is as large as the cache that is used; write it off the main thread.
     *
     * @throws StreamFuseException where it cannot be written.
     */
    public fun save(file: File): Unit = TODO()

    /**
     * Takes back what [save] wrote with the same bundle, in this process or another.
     *
     * @throws StreamFuseException ([ErrorCode.BAD_FILE]) for a damaged or foreign file.
     */
    public fun restore(file: File): Unit = TODO()

    /** Gives the memory back; waits for the token that is being computed. Nothing happens the second time. */
    override fun close(): Unit = TODO()
}

/** A conversation: [Model.chat]. */
public class Chat internal constructor() : Session() {
    /** The turns so far; an answer that is being written comes when it ends. */
    public val messages: List<Message> get() = TODO()
}

/** Plain text that is continued: [Model.completion]. */
public class Completion internal constructor() : Session()
