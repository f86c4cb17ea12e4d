package dev.streamfuse

import java.io.File
import kotlinx.coroutines.CoroutineStart
import kotlinx.coroutines.Dispatchers
import kotlinx.coroutines.NonCancellable
import kotlinx.coroutines.asExecutor
import kotlinx.coroutines.awaitCancellation
import kotlinx.coroutines.coroutineScope
import kotlinx.coroutines.ensureActive
import kotlinx.coroutines.flow.Flow
import kotlinx.coroutines.flow.flow
import kotlinx.coroutines.launch
import kotlinx.coroutines.withContext

/**
 * A sequence of tokens with a cache of its own, that answers one request at a time. Any thread may use it.
 *
 * An answer may be ended early at any token: by leaving the flow, cancelling its coroutine, [stop], [save], [restore],
 * [reset] or [close]. What was delivered counts, and the next request goes on from there. But for leaving and
 * cancelling, the flow then completes normally, and [statistics] has the finish reason `stopped`.
 *
 * Its functions throw [IllegalStateException] once it is closed.
 */
public sealed class Session(
    private val model: Model,
    private val sequence: Sequence,
    private val defaults: GenerationConfig,
) : AutoCloseable {
    private val dispatcher = model.options.dispatcher

    /** What the last answer took; null before the first one has ended. It can be read after [close]. */
    @Volatile
    public var statistics: Statistics? = null
        internal set

    /** Why the last answer was not drafted, in whole or in part; null where it was. */
    public val fallbackReason: String? get() = statistics?.fallbackReason

    /**
     * Asks; the answer comes in pieces while it is written. Each collection of the flow asks anew.
     *
     * The work runs on [Options.dispatcher], whatever the collector runs on. The next token is computed when the
     * collector has dealt with the last, so that leaving is exact; add `.buffer()` to let the model run ahead.
     *
     * The flow fails with [IllegalStateException] where another answer is being written or the session is closed, and
     * with [StreamFuseException] where the request is refused or the engine fails. A refused request changes nothing.
     *
     * @param config what differs from the session's defaults.
     */
    public fun send(text: String, config: GenerationConfig = GenerationConfig()): Flow<Piece> = flow {
        writing(text, config) { answer ->
            while (true) emit(withContext(dispatcher) { answer.next() } ?: break)
        }
    }

    /**
     * Asks, and reports to [callback] from [Options.dispatcher]; returns at once.
     *
     * @throws IllegalStateException where another answer is being written or the session is closed.
     */
    @JvmOverloads
    public fun send(text: String, callback: GenerationCallback, config: GenerationConfig = GenerationConfig()) {
        val answer = claim(text, config)
        dispatcher.asExecutor().execute {
            val outcome = runCatching {
                while (true) callback.onPiece(answer.next() ?: break)
            }
            answer.close()
            outcome.fold({ callback.onDone(answer.statistics) }, callback::onError)
        }
    }

    /** Asks, and waits for the whole answer. Fails as the flow of [send] does. */
    public suspend fun generate(text: String, config: GenerationConfig = GenerationConfig()): String {
        val whole = StringBuilder()
        writing(text, config) { answer ->
            withContext(dispatcher) {
                while (true) {
                    ensureActive()
                    whole.append((answer.next() ?: break).text)
                }
            }
        }
        return whole.toString()
    }

    /** Ends the answer that is being written at its next token; returns at once. Does nothing where there is none. */
    public fun stop(): Unit = sequence.stop()

    /** Forgets all tokens, and all turns but the system message. */
    public fun reset(): Unit = sequence.alone { handle ->
        Native.reset(handle, firstMessages()).also { if (it == Native.OK) readMessages(handle) }
    }

    /**
     * Writes cache, tokens and conversation to [file], in one piece or not at all. An answer that is being written ends
     * here. The file is as large as the cache that is used; write it off the main thread.
     *
     * @throws StreamFuseException where it cannot be written.
     */
    public fun save(file: File): Unit = sequence.alone { handle -> Native.save(handle, file.bytes()) }

    /**
     * Takes back what [save] wrote with the same bundle, in this process or another, or in another language.
     *
     * @throws StreamFuseException ([ErrorCode.BAD_FILE]) for a damaged or foreign file; the conversation is as before.
     */
    public fun restore(file: File): Unit = sequence.alone { handle ->
        Native.restore(handle, file.bytes(), this is Chat).also { if (it == Native.OK) readMessages(handle) }
    }

    /** Gives the memory back; waits for the token that is being computed. Nothing happens the second time. */
    override fun close() {
        sequence.free()
        model.forget(this)
    }

    /** The turns of a new conversation, as JSON. */
    internal abstract fun firstMessages(): ByteArray

    /** Takes the turns over from the native half; under the sequence's lock. */
    internal abstract fun readMessages(handle: Long)

    private fun claim(text: String, config: GenerationConfig) =
        Answer(this, sequence, text, config.over(defaults)).also(sequence::claim)

    /** Runs [body] over an answer, which ends with it however that ends. */
    private suspend fun writing(text: String, config: GenerationConfig, body: suspend (Answer) -> Unit) {
        val answer = claim(text, config)
        try {
            coroutineScope {
                // A cancelled coroutine is heard in the middle of a prompt too: whoever cancels calls stop.
                val watcher = launch(Dispatchers.Unconfined, CoroutineStart.UNDISPATCHED) {
                    try {
                        awaitCancellation()
                    } finally {
                        sequence.stop(answer)
                    }
                }
                body(answer)
                watcher.cancel()
            }
        } finally {
            if (!answer.ended) withContext(NonCancellable + dispatcher) { answer.close() }
        }
    }
}
