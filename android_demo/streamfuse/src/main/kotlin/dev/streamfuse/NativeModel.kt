package dev.streamfuse

import java.io.File

/** The native side of a [Model]; tests of the Kotlin code implement it in Kotlin. */
internal interface NativeModel {
    val manifest: String

    /** The engine's own description of the program, JSON. */
    val description: String

    /** Load time in milliseconds. */
    val loadMs: Double

    /** The bundle's defaults, and whether it has a chat template. */
    fun defaults(): Pair<GenerationConfig, Boolean>

    /**
     * @param tools a JSON list in OpenAI's format; null if there are none.
     * @param variables of the chat template, a JSON object; null if there are none.
     * @param adapter the name of a task adapter; null: the base model.
     * @throws StreamFuseException if memory runs out or the bundle has no chat template or no such adapter.
     */
    fun newChat(
        system: String?,
        history: List<Message>,
        tools: String?,
        variables: String?,
        policy: ContextPolicy,
        adapter: String?,
    ): NativeSession

    /** @throws StreamFuseException if memory runs out or the bundle has no such adapter. */
    fun newCompletion(adapter: String?): NativeSession

    /** The number of tokens of a text in a message. */
    fun countTokens(text: String): Int

    /** Erases the answers of earlier conversations, also from their file. */
    fun forget()

    /** The report of the self-test, JSON. */
    fun selfTest(): String

    /** Frees the memory; its sessions must be freed first. */
    fun close()
}

/** A [NativeModel] over C++. */
internal class JniModel private constructor(private val handle: Long) : NativeModel {
    override val manifest get() = Native.manifest(handle).text()
    override val description get() = Native.description(handle).text()
    override val loadMs get() = Native.loadMs(handle)

    override fun defaults(): Pair<GenerationConfig, Boolean> {
        val reply = Reply()
        check(Native.defaults(handle, reply.buffer))
        return reply.config to reply.canChat
    }

    override fun newChat(
        system: String?,
        history: List<Message>,
        tools: String?,
        variables: String?,
        policy: ContextPolicy,
        adapter: String?,
    ): NativeSession {
        val texts = bytesOf(system, Message.write(history), tools, variables, adapter)
        return JniSession.open { Native.newSession(handle, true, texts, policy.ordinal, it) }
    }

    override fun newCompletion(adapter: String?): NativeSession =
        JniSession.open { Native.newSession(handle, false, bytesOf(null, null, null, null, adapter), 0, it) }

    override fun countTokens(text: String): Int {
        val reply = Native.countTokens(handle, text.encodeToByteArray())
        return tokenCount(reply) { Native.modelError(handle).text() }
    }

    override fun forget() = check(Native.forget(handle))

    override fun selfTest(): String {
        val reply = Reply()
        val report = Native.selfTest(handle, reply.buffer)
        check(reply.code)
        return report.text()
    }

    override fun close() = Native.closeModel(handle)

    private fun check(code: Int) {
        if (code != Native.OK) throw failure(code) { Native.modelError(handle).text() }
    }

    companion object {
        fun open(folder: File, options: Options, progress: LoadProgress?): JniModel {
            val reply = Reply()
            val key = options.publicKey?.encodeToByteArray()
            val costs = options.cacheDir?.bytes()
            val memory = options.memoryFile?.bytes()
            val threads = options.threads ?: 0
            val code = Native.openModel(
                folder.bytes(), threads, options.checkHashes, key, costs, memory, progress?.handle ?: 0, reply.buffer,
            )
            if (reply.handle == 0L) throw failure(Native.OUT_OF_MEMORY) { "" }
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
