package dev.streamfuse

import java.io.File
import kotlinx.coroutines.CoroutineScope
import kotlinx.coroutines.CoroutineStart
import kotlinx.coroutines.Dispatchers
import kotlinx.coroutines.NonCancellable
import kotlinx.coroutines.asExecutor
import kotlinx.coroutines.awaitCancellation
import kotlinx.coroutines.coroutineScope
import kotlinx.coroutines.currentCoroutineContext
import kotlinx.coroutines.ensureActive
import kotlinx.coroutines.flow.Flow
import kotlinx.coroutines.flow.flow
import kotlinx.coroutines.launch
import kotlinx.coroutines.withContext
import kotlinx.serialization.SerializationException
import org.jetbrains.annotations.Blocking

/**
 * A sequence of tokens with its own cache that answers one request at a time. Any thread may use it.
 *
 * An answer may be ended early at any token: by leaving the flow, cancelling its coroutine, another request, [stop],
 * [prepare], [save], [restore], [trim], [reset] or [close]. Delivered tokens are kept, and the next request continues
 * from there. Except after leaving and cancelling, the flow completes normally and [statistics] has the finish reason
 * `stopped`.
 *
 * After [close] its functions throw [StreamFuseException] with [ErrorCode.CLOSED]. If it becomes unreachable without
 * being closed, its memory is freed when the next session is opened, and the log names the place where it was opened.
 */
public sealed class Session(
    private val model: Model,
    private val sequence: Sequence,
    private val defaults: GenerationConfig,
) : AutoCloseable {
    private val dispatcher = model.options.dispatcher
    internal lateinit var watch: Leaks.Watch

    /** Statistics of the last answer; null until the first one has ended. It can be read after [close]. */
    @Volatile
    public var statistics: Statistics? = null
        internal set

    /** Tokens of the context that the last prompt and its answer occupy; an answer in progress counts when it ends. */
    @Volatile
    public var usedTokens: Int = 0
        private set

    /** Tokens of the context that are left: [Model.contextLength] without [usedTokens]. */
    public val remainingTokens: Int get() = model.contextLength - usedTokens

    /** Why the last answer was not drafted, in whole or in part; null if it was. */
    public val fallbackReason: String? get() = statistics?.fallbackReason

    /**
     * Sends a request and streams the answer in pieces. Each collection of the flow sends the request again.
     *
     * The work runs on [Options.dispatcher], whatever the collector runs on. The next token is computed after the
     * collector has processed the last one, so leaving takes effect at exactly that token. Add `.flowOn` with that
     * dispatcher to let the model run ahead of the collector, with one thread switch per answer instead of two per
     * token; what it has written when the collector leaves is in the conversation too.
     *
     * An answer in progress ends at its next token when the collection begins. The flow fails with
     * [StreamFuseException] if the session is closed, the request is refused or the engine fails. A refused request has
     * no other effect.
     *
     * In a chat with tools the flow has the pieces of all answers, up to the one without calls ([Model.chat]).
     *
     * @param config overrides of the session's defaults.
     */
    public fun send(text: String, config: GenerationConfig = GenerationConfig()): Flow<Piece> =
        send(Prompt(text), config)

    internal fun send(prompt: Prompt, config: GenerationConfig): Flow<Piece> = flow {
        writing(prompt, config) { answer ->
            while (true) emit(withContext(dispatcher) { answer.next() } ?: break)
        }
    }

    /**
     * Sends a request and reports the answer to [callback] on [Options.dispatcher]; returns immediately. An answer in
     * progress ends at its next token.
     *
     * @throws StreamFuseException if the session is closed.
     */
    @JvmOverloads
    public fun send(text: String, callback: GenerationCallback, config: GenerationConfig = GenerationConfig()): Unit =
        send(Prompt(text), callback, config)

    internal fun send(prompt: Prompt, callback: GenerationCallback, config: GenerationConfig) {
        val answer = claim(prompt, config)
        try {
            dispatcher.asExecutor().execute {
                // Starts on this thread. A tool that suspends frees it, even for its own work; the rest is dispatched.
                CoroutineScope(dispatcher).launch(start = CoroutineStart.UNDISPATCHED) {
                    try {
                        callback.onDone(write(answer, callback).statistics)
                    } catch (error: Throwable) {
                        callback.onError(error)
                    }
                }
            }
        } catch (error: Throwable) { // a dispatcher that takes no more work
            sequence.release(answer)
            throw error
        }
    }

    /** Writes [first] and the answers that follow on tool calls; the last one. */
    private suspend fun write(first: Generation, callback: GenerationCallback): Generation {
        var answer = first
        try {
            for (round in generateSequence(0) { it + 1 }) {
                while (true) callback.onPiece(answer.next() ?: break)
                val prompt = followUp(answer, round) ?: break
                answer = next(answer, prompt) ?: break
            }
        } catch (error: Throwable) {
            runCatching { answer.close() }.onFailure(error::addSuppressed)
            throw error
        }
        return answer
    }

    /**
     * Sends a request and waits for the whole answer; in a chat with tools, for the one without calls ([Model.chat]).
     * Fails as the flow of [send] does.
     */
    public suspend fun generate(text: String, config: GenerationConfig = GenerationConfig()): Answer =
        generate(Prompt(text), config)

    internal suspend fun generate(prompt: Prompt, config: GenerationConfig): Answer {
        val pieces = mutableListOf<Piece>()
        val last = writing(prompt, config) { answer ->
            pieces.clear()
            withContext(dispatcher) {
                while (true) {
                    ensureActive()
                    pieces += answer.next() ?: break
                }
            }
        }
        fun text(channel: Channel) = pieces.filter { it.channel == channel }.joinToString("") { it.text }
        val tokens = pieces.mapNotNull { it.token }
        val (answer, thinking) = text(Channel.ANSWER) to text(Channel.THINKING)
        val logProbs = pieces.mapNotNull { it.logProb }
        val top = pieces.map { it.topLogProbs }.filter { it.isNotEmpty() }
        return Answer(answer, thinking, tokens, last.toolCalls, last.statistics, logProbs, top)
    }

    /**
     * Sends a request and waits for the answer as an object of a serializable class, whose schema ([schemaOf]) it fits.
     * Fails as [generate] and [Answer.parsed] do.
     *
     * @param config overrides of the session's defaults, without another constraint. In a chat with tools, `toolChoice`
     *   `auto` lets the model call them before it answers.
     */
    public suspend inline fun <reified T> generateObject(
        text: String,
        config: GenerationConfig = GenerationConfig(),
    ): T = generate(text, config.copy(schema = schemaOf<T>())).parsed<T>()

    /**
     * How probable the model finds a given [answer] to [text], for example to choose the most probable of several; in a
     * completion, how probable it finds that [answer] continues [text] (begin it with the space that separates them). The
     * answer is not generated, and the conversation is unchanged. Answers to the same text share its prefill. An answer
     * in progress ends here; the result of a running tool still reaches the model.
     *
     * @throws StreamFuseException if the answer is empty, text and answer do not fit into the context, or a pass fails;
     *   with [ErrorCode.CANCELLED] if [stop], a request for an answer, [reset] or [restore] ends it.
     */
    public suspend fun score(text: String, answer: String): Score {
        currentCoroutineContext().ensureActive()
        val scoring = Scoring()
        sequence.interrupt()
        return whileActive({ sequence.stop(scoring) }) {
            withContext(dispatcher) {
                try {
                    Score(sequence.scoring(scoring) { native -> native.score(text, answer) })
                } catch (error: StreamFuseException) {
                    ensureActive() // a cancelled coroutine has ended it
                    throw error
                }
            }
        }
    }

    /** Ends the answer or the [score] in progress at its next token; returns immediately. Does nothing if there is none. */
    public fun stop(): Unit = sequence.stop()

    /**
     * Measures the latency of passes on this device, unless it is known: about 250 ms, longer on slow devices. Without
     * this call, the first answer without a fixed width takes that much longer. An answer in progress ends here; the
     * result of a running tool still reaches the model.
     *
     * @throws StreamFuseException if a pass fails.
     */
    @Blocking
    public fun prepare(): Unit = sequence.alone(keepsRounds = true) { native -> native.prepare() }

    /** [prepare] on [Options.dispatcher]. */
    public suspend fun prepareInBackground(): Unit = alone { prepare() }

    /** Clears all tokens, and all turns except the initial ones: the system message and the history. */
    @Blocking
    public fun reset(): Unit = sequence.alone { native ->
        native.reset()
        readState(native)
    }

    /** [reset] on [Options.dispatcher]. */
    public suspend fun resetInBackground(): Unit = alone { reset() }

    /**
     * Drops the cache and gives its memory back to the system, while memory is short. An answer in progress ends here;
     * the result of a running tool still reaches the model. The conversation stays, and the next request prefills it
     * again. [Model.trim] does this for all sessions that are not in use.
     */
    @Blocking
    public fun trim(): Unit = sequence.alone(keepsRounds = true) { native -> native.trim() }

    /** [trim] on [Options.dispatcher]. */
    public suspend fun trimInBackground(): Unit = alone { trim() }

    /**
     * Writes cache, tokens and conversation to [file] atomically. An answer in progress ends here; the result of a
     * running tool still reaches the model. The file is as large as the used part of the cache; call it off the main
     * thread, or use [saveInBackground].
     *
     * @throws StreamFuseException if it cannot be written.
     */
    @Blocking
    public fun save(file: File): Unit = sequence.alone(keepsRounds = true) { native -> native.save(file) }

    /** [save] on [Options.dispatcher]. */
    public suspend fun saveInBackground(file: File): Unit = alone { save(file) }

    /**
     * Restores what [save] wrote with the same bundle, in this process or another, or in another language.
     *
     * @throws StreamFuseException ([ErrorCode.BAD_FILE]) for a damaged or foreign file; the conversation is then
     *   unchanged. Also if a turn does not fit [Message], for example with a role that only another language's library
     *   has; the session is then reset.
     */
    @Blocking
    public fun restore(file: File): Unit = sequence.alone { native ->
        native.restore(file)
        try {
            readState(native)
        } catch (error: SerializationException) {
            native.reset() // it has turns that cannot be shown
            readState(native)
            val reason = error.message.orEmpty().lineSequence().first()
            val sentence = "$file has a turn that this library cannot read, so the session was reset ($reason)"
            throw StreamFuseException(ErrorCode.BAD_FILE, sentence)
        }
    }

    /** [restore] on [Options.dispatcher]. */
    public suspend fun restoreInBackground(file: File): Unit = alone { restore(file) }

    /** Frees the memory, after the token that is being computed. A second call does nothing. */
    @Blocking
    override fun close() {
        watch.end()
        model.close(sequence)
    }

    /** [close] on [Options.dispatcher], even if the caller is cancelled. */
    public suspend fun closeInBackground(): Unit = withContext(NonCancellable) { alone { close() } }

    /** Runs [body] on the dispatcher, after ending the answer in progress, which may occupy all its threads. */
    private suspend fun alone(body: () -> Unit) {
        currentCoroutineContext().ensureActive()
        sequence.interrupt()
        withContext(dispatcher) { body() }
    }

    /** Whether nothing was requested or stopped since [answer], so that its tool calls are still to be made. */
    internal fun goesOn(answer: Generation): Boolean = sequence.goesOn(answer)

    /** Copies the turns and counts from the native side; the caller holds the sequence's lock. */
    internal fun readState(native: NativeSession) {
        usedTokens = native.usedTokens()
        readMessages(native)
    }

    /** Copies the turns. */
    internal abstract fun readMessages(native: NativeSession)

    /** Calls the tools that an ended answer asks for: what to continue with; null if nothing is to follow. */
    internal abstract suspend fun followUp(answer: Generation, round: Int): Prompt?

    private fun claim(prompt: Prompt, config: GenerationConfig) =
        Generation(this, sequence, prompt, config.over(defaults)).also(sequence::claim)

    /** The answer to the results of an ended one's tool calls; null if something was requested or stopped since. */
    private fun next(ended: Generation, results: Prompt): Generation? {
        val choice = ended.config.toolChoice?.let { if (it == "none") it else "auto" } // a required call was made
        val answer = Generation(this, sequence, results, ended.config.copy(toolChoice = choice))
        return answer.takeIf { sequence.claimAfter(ended, it) }
    }

    /** Runs [body] over the answer, and over those that follow on tool calls; the last one. */
    private suspend fun writing(
        prompt: Prompt,
        config: GenerationConfig,
        body: suspend (Generation) -> Unit,
    ): Generation {
        var answer = claim(prompt, config)
        for (round in generateSequence(0) { it + 1 }) {
            writing(answer, body)
            val results = withContext(dispatcher) { followUp(answer, round) } ?: break
            answer = next(answer, results) ?: break
        }
        return answer
    }

    /** Runs [body] over an answer and ends the answer afterwards, even if [body] fails. */
    private suspend fun writing(answer: Generation, body: suspend (Generation) -> Unit) {
        try {
            whileActive({ sequence.stop(answer) }) { body(answer) }
        } finally {
            if (!answer.ended) withContext(NonCancellable + dispatcher) { answer.close() }
        }
    }

    /** Runs [body]. The thread that cancels it calls [stop], so that this takes effect during a prefill too. */
    private suspend fun <T> whileActive(stop: () -> Unit, body: suspend () -> T): T = coroutineScope {
        val watcher = launch(Dispatchers.Unconfined, CoroutineStart.UNDISPATCHED) {
            try {
                awaitCancellation()
            } finally {
                stop()
            }
        }
        body().also { watcher.cancel() }
    }
}
