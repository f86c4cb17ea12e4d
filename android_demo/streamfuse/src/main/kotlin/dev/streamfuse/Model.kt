package dev.streamfuse

import java.io.File
import kotlinx.coroutines.NonCancellable
import kotlinx.coroutines.withContext
import kotlinx.serialization.Serializable
import kotlinx.serialization.json.Json
import org.jetbrains.annotations.Blocking

/**
 * A bundle that is open: checked files, tokenizer, loaded graphs. Any thread may use it.
 *
 * Close it when it is no longer needed: its memory is not the garbage collector's. One that is forgotten keeps it until
 * the next model or session is opened; then the log names the place where it was opened.
 */
public class Model internal constructor(
    native: NativeModel,
    private val folder: File,
    internal val options: Options,
) : AutoCloseable {
    private val memory = ModelMemory(native)

    /** The manifest as JSON text, as it lies in the bundle. */
    public val manifest: String = native.manifest
    private val facts = reader.decodeFromString(Manifest.serializer(), manifest)
    private val engine = reader.decodeFromString(Engine.serializer(), native.description)

    /** The name of the model, for example `HuggingFaceTB/SmolLM2-135M-Instruct`. */
    public val name: String get() = facts.model.name

    /** What runs its graphs, for example `kernels`: a name of [StreamFuse.backends]. */
    public val backend: String get() = facts.backend

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
        val (config, chats) = native.defaults()
        defaults = config.copy(stop = emptyList(), stopTokenIds = emptyList())
        canChat = chats
    }

    /** Milliseconds that loading took. */
    public val loadMs: Double = native.loadMs
    private val watch = Leaks.watch(this, "the model $folder", memory::close)

    /**
     * A conversation with a cache of its own, so that only new words are read. Its memory is asked for here: call it
     * off the main thread, or use [chatInBackground].
     *
     * @param system instructions that stay through [Session.reset].
     * @param history earlier turns, for example of another bundle's chat; they stay through [Session.reset] too.
     * @param config defaults of its answers.
     * @throws StreamFuseException where the bundle has no chat template, memory is out, or this model is closed.
     */
    @JvmOverloads
    @Blocking
    public fun chat(
        system: String? = null,
        history: List<Message> = emptyList(),
        config: GenerationConfig = GenerationConfig(),
    ): Chat = open("a chat", { it.newChat(system, history) }) { Chat(this, it, config.over(defaults)) }

    /** [chat] on [Options.dispatcher]. Where the caller is cancelled meanwhile, the chat is closed again. */
    public suspend fun chatInBackground(
        system: String? = null,
        history: List<Message> = emptyList(),
        config: GenerationConfig = GenerationConfig(),
    ): Chat = openedOn(options.dispatcher) { chat(system, history, config) }

    /**
     * A sequence that continues plain text, without a chat template. Each prompt stands alone; what it shares with the
     * text before it, from the beginning on, is not read again. Call it off the main thread, or use
     * [completionInBackground].
     *
     * @param config defaults of its answers.
     * @throws StreamFuseException where memory is out, or this model is closed.
     */
    @JvmOverloads
    @Blocking
    public fun completion(config: GenerationConfig = GenerationConfig()): Completion =
        open("a completion", NativeModel::newCompletion) { Completion(this, it, config.over(defaults)) }

    /** [completion] on [Options.dispatcher]. Where the caller is cancelled meanwhile, it is closed again. */
    public suspend fun completionInBackground(config: GenerationConfig = GenerationConfig()): Completion =
        openedOn(options.dispatcher) { completion(config) }

    /**
     * Gives the memory back, and closes its chats: an answer that runs is ended at its next token, for which this call
     * waits. Nothing happens the second time.
     */
    @Blocking
    override fun close() {
        watch.end()
        memory.close()
    }

    /** [close] on [Options.dispatcher], also where the caller is cancelled. */
    public suspend fun closeInBackground(): Unit = withContext(NonCancellable + options.dispatcher) { close() }

    private fun <S : Session> open(kind: String, native: (NativeModel) -> NativeSession, make: (Sequence) -> S): S {
        Leaks.sweep()
        val sequence = memory.open(native)
        try {
            return make(sequence).also { session ->
                sequence.use(session::readMessages)
                val memory = memory // the watch must not hold the model
                session.watch = Leaks.watch(session, "$kind of $folder") { memory.close(sequence) }
            }
        } catch (error: Throwable) {
            memory.close(sequence)
            throw error
        }
    }

    internal fun close(sequence: Sequence) {
        memory.close(sequence)
    }

    // What this library reads of a manifest and of the engine's description, by their own names.
    @Serializable
    private class Manifest(
        val backend: String,
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
