package dev.streamfuse

import java.io.File
import java.nio.ByteBuffer
import java.nio.ByteOrder
import kotlinx.serialization.builtins.ListSerializer
import kotlinx.serialization.builtins.serializer
import kotlinx.serialization.json.Json

/**
 * The native side of a session: a sequence of tokens, its cache and its text. [Sequence] ensures that one thread uses
 * it at a time, except for [stop]. Its functions throw [StreamFuseException].
 */
internal interface NativeSession {
    /** Measures the latency of passes on this device, unless it is known. */
    fun prepare()

    /** The log-probabilities of an answer's tokens. [stop] ends it with [ErrorCode.CANCELLED]. */
    fun score(text: String, answer: String): List<Double>

    /** Begins an answer. Every field of [config] is set, except perhaps the width and the constraint. */
    fun start(prompt: Prompt, config: GenerationConfig)

    /** The next step; null at the end, after the turn is added to the conversation. */
    fun next(): Piece?

    /** Ends the answer at its next token; without a running answer it has no effect. */
    fun stop()

    /**
     * Ends the answer after the last delivered token and closes the turn; text that was held back is the next steps.
     * Does nothing if the answer has ended.
     */
    fun finish()

    /** Statistics of the last answer, JSON. */
    fun statistics(): String

    /** The turns, JSON. */
    fun messages(): String

    /** The tool calls of the last answer, a JSON list; empty if the last question was dropped. If tool results were
     * dropped, their calls again. */
    fun toolCalls(): String

    /** Tokens of the last prompt and its answer. */
    fun usedTokens(): Int

    fun reset()

    /** Gives the memory of the cache back; the conversation stays. */
    fun trim()

    fun save(file: File)

    fun restore(file: File)

    fun free()
}

/** A [NativeSession] over C++; [reply] is the memory that both sides read. */
internal class JniSession private constructor(private val handle: Long, private val reply: Reply) : NativeSession {
    private var wantsTop = false

    override fun prepare() = check(Native.prepare(handle))

    override fun score(text: String, answer: String): List<Double> {
        val bytes = Native.score(handle, text.encodeToByteArray(), answer.encodeToByteArray(), reply.buffer)
        check(reply.code)
        val scores = ByteBuffer.wrap(bytes ?: throw failure(Native.OUT_OF_MEMORY) { "" }).order(ByteOrder.nativeOrder())
        return List(bytes.size / Float.SIZE_BYTES) { scores.getFloat().toDouble() }
    }

    override fun start(prompt: Prompt, config: GenerationConfig) {
        reply.config = config
        wantsTop = config.topLogProbs!! > 0
        val stops = Json.encodeToString(ListSerializer(String.serializer()), config.stop!!)
        val stopIds = LongArray(config.stopTokenIds!!.size) { config.stopTokenIds[it].toLong() }
        val texts = bytesOf(prompt.text, stops, config.schema, config.regex, config.grammar, config.toolChoice)
        check(Native.start(handle, prompt.isResults, texts, stopIds, reply.buffer))
    }

    override fun next(): Piece? {
        val code = Native.next(handle, reply.buffer)
        if (code == Native.END) return null
        check(code)
        val piece = reply.step { Native.longText(handle) }
        return if (wantsTop && piece.token != null) piece.copy(topLogProbs = top()) else piece
    }

    private fun top(): List<TokenLogProb> {
        val bytes = Native.top(handle, reply.buffer)
        check(reply.code)
        val buffer = ByteBuffer.wrap(bytes ?: throw failure(Native.OUT_OF_MEMORY) { "" }).order(ByteOrder.nativeOrder())
        return buildList {
            while (buffer.hasRemaining()) {
                val (token, logProb) = buffer.getInt() to buffer.getFloat().toDouble()
                val text = ByteArray(buffer.getInt()).also { buffer.get(it) }
                add(TokenLogProb(token, logProb, String(text, Charsets.UTF_8)))
            }
        }
    }

    override fun stop() = Native.stop(handle)

    override fun finish() = check(Native.finish(handle))

    override fun statistics() = Native.statistics(handle).text()

    override fun messages() = Native.messages(handle).text()

    override fun toolCalls() = Native.toolCalls(handle).text()

    override fun usedTokens() = Native.usedTokens(handle).toInt()

    override fun reset() = check(Native.reset(handle))

    override fun trim() = check(Native.trim(handle))

    override fun save(file: File) = check(Native.save(handle, file.bytes()))

    override fun restore(file: File) = check(Native.restore(handle, file.bytes()))

    override fun free() = Native.freeSession(handle)

    private fun check(code: Int) {
        if (code != Native.OK) throw failure(code) { Native.error(handle).text() }
    }

    companion object {
        /** The session that [make] writes to a reply, even if it fails. */
        fun open(make: (ByteBuffer) -> Int): JniSession {
            val reply = Reply()
            val code = make(reply.buffer)
            if (reply.handle == 0L) throw failure(Native.OUT_OF_MEMORY) { "" }
            val session = JniSession(reply.handle, reply)
            try {
                return session.also { it.check(code) }
            } catch (error: Throwable) {
                session.free()
                throw error
            }
        }
    }
}
