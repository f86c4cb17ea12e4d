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
import org.jetbrains.annotations.Blocking

/**
 * A sequence of tokens with a cache of its own, that answers one request at a time. Any thread may use it.
 *
 * An answer may be ended early at any token: by leaving the flow, cancelling its coroutine, another request, [stop],
 * [save], [restore], [reset] or [close]. What was delivered counts, and the next request goes on from there. But for
 * leaving and cancelling, the flow then completes normally, and [statistics] has the finish reason `stopped`.
 *
 * Its functions throw [StreamFuseException] with [ErrorCode.CLOSED] once it is closed. One that is forgotten without
 * being closed keeps its memory until the next session is opened; then the log names the place where it was opened.
 */
public sealed class Session(
    private val model: Model,
    private val sequence: Sequence,
    private val defaults: GenerationConfig,
) : AutoCloseable {
    private val dispatcher = model.options.dispatcher
    internal lateinit var watch: Leaks.Watch

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
     * collector has dealt with the last, so that leaving is exact. Add `.flowOn` with that dispatcher to let the model
     * run ahead of its collector, and to change threads once in an answer instead of twice in a token.
     *
     * An answer that is being written ends at its next token when the collection begins. The flow fails with
     * [StreamFuseException] where the session is closed, the request is refused or the engine fails. A refused request
     * changes nothing but that.
     *
     * @param config what differs from the session's defaults.
     */
    public fun send(text: String, config: GenerationConfig = GenerationConfig()): Flow<Piece> = flow {
        writing(text, config) { answer ->
            while (true) emit(withContext(dispatcher) { answer.next() } ?: break)
        }
    }

    /**
     * Asks, and reports to [callback] from [Options.dispatcher]; returns at once. An answer that is being written ends
     * at its next token.
     *
     * @throws StreamFuseException where the session is closed.
     */
    @JvmOverloads
    public fun send(text: String, callback: GenerationCallback, config: GenerationConfig = GenerationConfig()) {
        val answer = claim(text, config)
        try {
            dispatcher.asExecutor().execute {
                try {
                    write(answer, callback)
                    callback.onDone(answer.statistics)
                } catch (error: Throwable) {
                    callback.onError(error)
                }
            }
        } catch (error: Throwable) { // a dispatcher that takes no more work
            sequence.release(answer)
            throw error
        }
    }

    private fun write(answer: Answer, callback: GenerationCallback) {
        try {
            while (true) callback.onPiece(answer.next() ?: break)
        } catch (error: Throwable) {
            runCatching { answer.close() }.onFailure(error::addSuppressed)
            throw error
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

    /** Forgets all tokens, and all turns but those that it was made with: the system message and the history. */
    @Blocking
    public fun reset(): Unit = sequence.alone { native ->
        native.reset()
        readMessages(native)
    }

    /** [reset] on [Options.dispatcher]. */
    public suspend fun resetInBackground(): Unit = withContext(dispatcher) { reset() }

    /**
     * Writes cache, tokens and conversation to [file], in one piece or not at all. An answer that is being written ends
     * here. The file is as large as the cache that is used; write it off the main thread, or use [saveInBackground].
     *
     * @throws StreamFuseException where it cannot be written.
     */
    @Blocking
    public fun save(file: File): Unit = sequence.alone { native -> native.save(file) }

    /** [save] on [Options.dispatcher]. */
    public suspend fun saveInBackground(file: File): Unit = withContext(dispatcher) { save(file) }

    /**
     * Takes back what [save] wrote with the same bundle, in this process or another, or in another language.
     *
     * @throws StreamFuseException ([ErrorCode.BAD_FILE]) for a damaged or foreign file; the conversation is as before.
     */
    @Blocking
    public fun restore(file: File): Unit = sequence.alone { native ->
        native.restore(file)
        readMessages(native)
    }

    /** [restore] on [Options.dispatcher]. */
    public suspend fun restoreInBackground(file: File): Unit = withContext(dispatcher) { restore(file) }

    /** Gives the memory back; waits for the token that is being computed. Nothing happens the second time. */
    @Blocking
    override fun close() {
        watch.end()
        model.close(sequence)
    }

    /** [close] on [Options.dispatcher], also where the caller is cancelled. */
    public suspend fun closeInBackground(): Unit = withContext(NonCancellable + dispatcher) { close() }

    /** Takes the turns over from the native half; under the sequence's lock. */
    internal abstract fun readMessages(native: NativeSession)

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
