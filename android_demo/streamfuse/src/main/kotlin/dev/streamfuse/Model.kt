package dev.streamfuse

import java.io.File
import kotlinx.serialization.Serializable
import kotlinx.serialization.json.Json

/**
 * A bundle that is open: checked files, tokenizer, loaded graphs. Any thread may use it.
 *
 * Close it when it is no longer needed: its memory is not the garbage collector's.
 */
public class Model internal constructor(
    private val handle: Long,
    private val folder: File,
    internal val options: Options,
    started: Long,
) : AutoCloseable {
    private val lock = Any()
    private val sessions = mutableSetOf<Session>() // guarded by the lock, like `closed`
    private var closed = false

    /** The manifest as JSON text, as it lies in the bundle. */
    public val manifest: String = Native.manifest(handle).text()
    private val facts = reader.decodeFromString(Manifest.serializer(), manifest)
    private val engine = reader.decodeFromString(Engine.serializer(), Native.description(handle).text())
    private val costs = CostFile(options.cacheDir, Native.identity(handle).text(), options.threads)

    /** The name of the model, for example `HuggingFaceTB/SmolLM2-135M-Instruct`. */
    public val name: String get() = facts.model.name

    /** The licence of its weights; null where the bundle does not know. */
    public val license: String? get() = facts.model.license

    /** How many tokens prompt and answer may have together. */
    public val contextLength: Int get() = facts.cache.capacity

    /** Values for [GenerationConfig.width]; empty where the bundle has no verify methods. */
    public val widths: List<Int> =
        facts.methods.filterKeys { it.startsWith("verify_") }.values.map { it.rows }.filter { it > 1 }.sorted()

    /** Whether the bundle can draft. */
    public val hasSpeculativeDecodingSupport: Boolean
        get() = widths.isNotEmpty()

    /** The bundle's defaults: every field but [GenerationConfig.width] has a value. */
    public val defaults: GenerationConfig

    /** Whether the bundle has a chat template; without one only [completion] works. */
    public val canChat: Boolean

    /** Threads that the engine runs on. */
    public val threads: Int get() = engine.threads

    init {
        val reply = Reply()
        val code = Native.defaults(handle, reply.buffer)
        if (code != Native.OK) throw failure(code, Native.modelError(handle).text())
        defaults = reply.config.copy(stop = emptyList(), stopTokenIds = emptyList())
        canChat = reply.canChat
    }

    /** Milliseconds that loading took. */
    public val loadMs: Double = (System.nanoTime() - started) / 1e6

    /**
     * A conversation with a cache of its own, so that only new words are read. Its memory is asked for here: call it
     * off the main thread.
     *
     * @param system instructions that stay through [Session.reset].
     * @param history earlier turns, for example of another bundle's chat.
     * @param config defaults of its answers.
     * @throws StreamFuseException where the bundle has no chat template, or memory is out.
     * @throws IllegalStateException where this model is closed.
     */
    @JvmOverloads
    public fun chat(
        system: String? = null,
        history: List<Message> = emptyList(),
        config: GenerationConfig = GenerationConfig(),
    ): Chat {
        if (!canChat) {
            val sentence = "$folder has no chat template; use completion() for plain text"
            throw StreamFuseException(ErrorCode.BAD_ARGUMENT, sentence)
        }
        return open(Chat.jsonOf(system, history)) { Chat(this, it, config.over(defaults), system) }
    }

    /**
     * A sequence that continues plain text, without a chat template. Each prompt stands alone; what it shares with the
     * text before it, from the beginning on, is not read again.
     *
     * @param config defaults of its answers.
     * @throws StreamFuseException where memory is out.
     * @throws IllegalStateException where this model is closed.
     */
    @JvmOverloads
    public fun completion(config: GenerationConfig = GenerationConfig()): Completion =
        open(Chat.jsonOf(null, emptyList())) { Completion(this, it, config.over(defaults)) }

    /**
     * Gives the memory back, and closes its chats: an answer that runs is ended at its next token, for which this call
     * waits. Nothing happens the second time.
     */
    override fun close() {
        val open = synchronized(lock) {
            if (closed) return
            closed = true
            sessions.toList()
        }
        open.forEach { it.close() }
        Native.closeModel(handle)
    }

    internal fun forget(session: Session): Unit = synchronized(lock) { sessions -= session }

    private fun <S : Session> open(messages: ByteArray, make: (Sequence) -> S): S = synchronized(lock) {
        check(!closed) { "this model is closed; load it again" }
        val reply = Reply()
        val code = Native.newSession(
            handle, messages, costs.file?.bytes(), costs.text.encodeToByteArray(), loadMs, reply.buffer,
        )
        if (code != Native.OK) throw failure(code, Native.modelError(handle).text())
        val opened = reply.handle
        make(Sequence(opened, reply)).also {
            it.readMessages(opened)
            sessions += it
        }
    }

    // What this library reads of a manifest and of the engine's description, by their own names.
    @Serializable
    private class Manifest(
        val model: Facts,
        val methods: Map<String, Method>,
        val cache: Cache,
    ) {
        @Serializable
        class Facts(val name: String, val license: String? = null)

        @Serializable
        class Method(val rows: Int)

        @Serializable
        class Cache(val capacity: Int)
    }

    @Serializable
    private class Engine(val threads: Int)

    private companion object {
        val reader = Json { ignoreUnknownKeys = true }
    }
}
