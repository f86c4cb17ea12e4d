package dev.streamfuse

import java.io.File
import kotlinx.serialization.builtins.ListSerializer
import kotlinx.serialization.builtins.serializer
import kotlinx.serialization.json.Json

/**
 * The native half of a session: a sequence of tokens, its cache and its text. [Sequence] sees to it that one thread at
 * a time uses it, [stop] excepted. Its functions throw [StreamFuseException].
 */
internal interface NativeSession {
    /** Begins an answer. [config] is complete but for the width; raw: [prompt] is no turn of a conversation. */
    fun start(prompt: String, raw: Boolean, config: GenerationConfig)

    /** The next step; null at the end. */
    fun next(): Piece?

    /** Ends the answer at its next token; where none runs, nothing remembers it. */
    fun stop()

    /** Ends the answer after what was delivered. Where it fails the cache is shorter, and the next answer reads more. */
    fun finish()

    /** Closes the answer's text, and gives what was held back of it. Unless [answered], the question is forgotten. */
    fun endText(answered: Boolean): String

    /** Of the last answer, JSON. */
    fun statistics(): String

    /** The turns, JSON. */
    fun messages(): String

    fun reset(messages: ByteArray)

    fun save(file: File)

    /** conversation: also the turns, which the file must have then. */
    fun restore(file: File, conversation: Boolean)

    fun free()
}

/** A [NativeSession] over C++; [reply] is the memory that both sides read. */
internal class JniSession(private val handle: Long, private val reply: Reply) : NativeSession {
    override fun start(prompt: String, raw: Boolean, config: GenerationConfig) {
        reply.config = config
        val stops = Json.encodeToString(ListSerializer(String.serializer()), config.stop!!).encodeToByteArray()
        val stopIds = LongArray(config.stopTokenIds!!.size) { config.stopTokenIds[it].toLong() }
        check(Native.start(handle, prompt.encodeToByteArray(), raw, stops, stopIds, reply.buffer))
    }

    override fun next(): Piece? {
        val code = Native.next(handle, reply.buffer)
        if (code == Native.END) return null
        check(code)
        return reply.step { Native.longText(handle) }
    }

    override fun stop() = Native.stop(handle)

    override fun finish() {
        Native.finish(handle)
    }

    override fun endText(answered: Boolean): String {
        check(Native.endText(handle, answered, reply.buffer))
        return reply.step { Native.longText(handle) }.text
    }

    override fun statistics() = Native.statistics(handle).text()

    override fun messages() = Native.messages(handle).text()

    override fun reset(messages: ByteArray) = check(Native.reset(handle, messages))

    override fun save(file: File) = check(Native.save(handle, file.bytes()))

    override fun restore(file: File, conversation: Boolean) = check(Native.restore(handle, file.bytes(), conversation))

    override fun free() = Native.freeSession(handle)

    private fun check(code: Int) {
        if (code != Native.OK) throw failure(code, Native.error(handle).text())
    }
}
