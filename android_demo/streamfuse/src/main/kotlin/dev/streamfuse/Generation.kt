package dev.streamfuse

/** What an answer answers: the user's [text], or a JSON list of results of the last answer's tool calls. */
internal class Prompt(val text: String, val isResults: Boolean = false)

/** An answer in progress, token by token. Every field of [config] is set, except perhaps the width. */
internal class Generation(
    private val session: Session,
    private val sequence: Sequence,
    private val prompt: Prompt,
    val config: GenerationConfig,
) {
    private enum class State { NEW, RUNNING, ENDED }

    @Volatile private var state = State.NEW
    private val heldBack = ArrayDeque<Piece>()

    /** The number that the [Sequence] gave to its request. */
    var request = 0L

    /** Whether its end was requested. */
    @Volatile var stopped = false

    /** Its statistics, once it has ended. */
    var statistics = Statistics(finishReason = "stopped")
        private set

    /** Its tool calls, once it has ended. */
    var toolCalls: List<ToolCall> = emptyList()
        private set

    val ended: Boolean get() = state == State.ENDED

    /** The next step; null after the last. Computes one token; the first call also prefills the prompt. */
    fun next(): Piece? = sequence.locked {
        if (state == State.NEW && !sequence.isClaimed(this)) end() // a later request came before it began
        if (state == State.ENDED) return@locked heldBack.removeFirstOrNull()
        sequence.use { native ->
            try {
                if (state == State.NEW) start(native)
                native.next()
            } catch (failure: Throwable) {
                runCatching { end(refused = state == State.NEW) }.onFailure(failure::addSuppressed)
                throw failure
            } ?: run {
                end()
                heldBack.removeFirstOrNull()
            }
        }
    }

    /** Ends it now; does nothing if it has ended. */
    fun close(): Unit = sequence.locked { end() }

    /** [close]; the caller holds the lock. A [refused] request leaves the session as it was. */
    fun end(refused: Boolean = false) {
        val before = state
        state = State.ENDED
        try {
            val isLast = before == State.NEW && !refused && sequence.isClaimed(this)
            if (isLast) session.statistics = statistics // it ended before it began
            if (before == State.RUNNING) sequence.use(::closeTurn)
        } finally {
            sequence.release(this)
        }
    }

    private fun start(native: NativeSession) {
        sequence.begin(this)
        native.start(prompt, config)
        state = State.RUNNING
        session.readState(native)
        if (stopped) native.stop() // requested before it began; beginning clears the request
    }

    private fun closeTurn(native: NativeSession) {
        try {
            native.finish()
            while (true) heldBack += native.next() ?: break
        } finally {
            session.readState(native)
            toolCalls = FunctionCall.read(native.toolCalls()) // the last turn may be of an earlier answer
            statistics = Statistics.of(native.statistics()).also { session.statistics = it }
            log.fine { "an answer of ${statistics.generatedTokens} tokens ended: ${statistics.finishReason}" }
        }
    }
}
