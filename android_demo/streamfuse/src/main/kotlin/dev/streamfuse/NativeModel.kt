package dev.streamfuse

import java.io.File

/** The native half of a [Model]. Tests of what Kotlin does have one in Kotlin. */
internal interface NativeModel {
    val manifest: String

    /** What tells the bundle from others. */
    val identity: String

    /** What tells one build of the library from another. */
    val stamp: String

    /** The engine's own description of the program, JSON. */
    val description: String

    /** The bundle's defaults, and whether it has a chat template. */
    fun defaults(): Pair<GenerationConfig, Boolean>

    /** @throws StreamFuseException where memory is out, or the [messages] are refused. */
    fun newSession(messages: ByteArray, costs: CostFile, loadMs: Double): NativeSession

    /** Gives the memory back, once its sessions have. */
    fun close()
}

/** A [NativeModel] over C++. */
internal class JniModel private constructor(private val handle: Long) : NativeModel {
    override val manifest get() = Native.manifest(handle).text()
    override val identity get() = Native.identity(handle).text()
    override val stamp get() = Native.engineStamp().text()
    override val description get() = Native.description(handle).text()

    override fun defaults(): Pair<GenerationConfig, Boolean> {
        val reply = Reply()
        check(Native.defaults(handle, reply.buffer))
        return reply.config to reply.canChat
    }

    override fun newSession(messages: ByteArray, costs: CostFile, loadMs: Double): NativeSession {
        val reply = Reply()
        check(
            Native.newSession(
                handle, messages, costs.file?.bytes(), costs.text.encodeToByteArray(), loadMs, reply.buffer,
            ),
        )
        return JniSession(reply.handle, reply)
    }

    override fun close() = Native.closeModel(handle)

    private fun check(code: Int) {
        if (code != Native.OK) throw failure(code, Native.modelError(handle).text())
    }

    companion object {
        fun open(folder: File, options: Options): JniModel {
            val reply = Reply()
            val key = options.publicKey?.encodeToByteArray()
            val code = Native.openModel(folder.bytes(), options.threads ?: 0, options.checkHashes, key, reply.buffer)
            if (reply.handle == 0L) throw failure(code, "")
            val model = JniModel(reply.handle)
            try {
                return model.also { it.check(code) }
            } catch (error: Throwable) {
                model.close()
                throw error
            }
        }
    }
}
