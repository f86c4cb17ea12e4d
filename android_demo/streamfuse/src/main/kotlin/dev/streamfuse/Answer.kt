package dev.streamfuse

import kotlinx.serialization.builtins.ListSerializer
import kotlinx.serialization.builtins.serializer
import kotlinx.serialization.json.Json

/** An answer as it is written, token by token. [config] is complete but for the width. */
internal class Answer(
    private val session: Session,
    private val sequence: Sequence,
    private val prompt: String,
    private val config: GenerationConfig,
) {
    private enum class State { NEW, RUNNING, ENDED }

    @Volatile private var state = State.NEW
    private var delivered = 0
    private var heldBack: Piece? = null

    /** Somebody asked for its end. */
    @Volatile var stopped = false

    /** What it took, once it has ended. */
    var statistics = Statistics(finishReason = "stopped")
        private set

    val ended: Boolean get() = state == State.ENDED

    /** The next step; null after the last. Computes for one token, at first also for the prompt. */
    fun next(): Piece? = sequence.locked {
        if (state == State.ENDED) return@locked heldBack.also { heldBack = null }
        sequence.use { handle, reply ->
            if (state == State.NEW) start(handle, reply)
            when (val code = Native.next(handle, reply.buffer)) {
                Native.OK -> {
                    delivered++
                    reply.step { Native.longText(handle) }
                }
                Native.END -> {
                    end()
                    heldBack.also { heldBack = null }
                }
                else -> {
                    val failure = runCatching { sequence.check(code) }.exceptionOrNull()!!
                    end()
                    throw failure
                }
            }
        }
    }

    /** Ends it now; nothing happens where it has ended. */
    fun close(): Unit = sequence.locked { end() }

    /** [close], under the lock. */
    fun end() {
        val ran = state == State.RUNNING
        state = State.ENDED
        try {
            if (ran) sequence.use { handle, reply -> closeTurn(handle, reply) }
        } finally {
            sequence.release(this)
        }
    }

    private fun start(handle: Long, reply: Reply) {
        try {
            reply.config = config
            val stops = Json.encodeToString(ListSerializer(String.serializer()), config.stop!!).encodeToByteArray()
            val stopIds = LongArray(config.stopTokenIds!!.size) { config.stopTokenIds[it].toLong() }
            val raw = session is Completion
            sequence.check(Native.start(handle, prompt.encodeToByteArray(), raw, stops, stopIds, reply.buffer))
            state = State.RUNNING
            session.readMessages(handle)
            if (stopped) sequence.stop(this) // asked for before it began, which forgets what was asked
        } catch (error: Throwable) {
            end()
            throw error
        }
    }

    private fun closeTurn(handle: Long, reply: Reply) {
        Native.finish(handle) // where it fails the cache is shorter, and the next answer reads what is missing
        statistics = Statistics.of(Native.statistics(handle).text())
        session.statistics = statistics
        val answered = delivered > 0 || statistics.finishReason != "stopped"
        sequence.check(Native.endText(handle, answered, reply.buffer))
        val text = reply.step { Native.longText(handle) }.text
        if (text.isNotEmpty()) heldBack = Piece(text, null)
        session.readMessages(handle)
    }
}
