package dev.streamfuse

import java.io.File
import kotlinx.coroutines.NonCancellable
import kotlinx.coroutines.withContext
import kotlinx.serialization.Serializable
import kotlinx.serialization.json.Json
import kotlinx.serialization.json.JsonArray
import kotlinx.serialization.json.JsonObject
import org.jetbrains.annotations.Blocking

/**
 * An open bundle: checked files, tokenizer, loaded graphs. Any thread may use it.
 *
 * Close it when it is no longer needed: its memory is outside the Java heap. If it becomes unreachable without being
 * closed, its memory is freed when the next model or session is opened, and the log names the place where it was
 * opened.
 */
public class Model internal constructor(
    native: NativeModel,
    private val folder: File,
    internal val options: Options,
) : AutoCloseable {
    private val memory = ModelMemory(native)

    /** The manifest of the bundle, JSON text. */
    public val manifest: String = native.manifest
    private val facts = reader.decodeFromString(Manifest.serializer(), manifest)
    private val engine = reader.decodeFromString(Engine.serializer(), native.description)

    /** The name of the model, for example `HuggingFaceTB/SmolLM2-135M-Instruct`. */
    public val name: String get() = facts.model.name

    /** The backend of its graphs, for example `kernels`: a name of [StreamFuse.backends]. */
    public val backend: String get() = facts.backend

    /** The licence of its weights; null if the bundle does not state it. */
    public val license: String? get() = facts.model.license

    /** Maximum number of tokens of prompt and answer together. */
    public val contextLength: Int get() = facts.cache.capacity

    /** Values for [GenerationConfig.width]; empty if the bundle has no verify methods. */
    public val widths: List<Int> =
        facts.methods.filterKeys { it.startsWith("verify_") }.values.map { it.rows }.filter { it > 1 }.sorted()

    /** Whether the bundle can draft. */
    public val hasSpeculativeDecodingSupport: Boolean
        get() = widths.isNotEmpty()

    /** The bundle's defaults: every field except [GenerationConfig.width] has a value. */
    public val defaults: GenerationConfig

    /** Whether the bundle has a chat template; without one only [completion] works. */
    public val canChat: Boolean

    /** The names of the bundle's task adapters. */
    public val adapters: List<String> get() = facts.adapters.keys.toList()

    /** Number of threads of the engine. */
    public val threads: Int get() = engine.threads

    init {
        val (config, chats) = native.defaults()
        defaults = config.copy(stop = emptyList(), stopTokenIds = emptyList())
        canChat = chats
    }

    /** Load time in milliseconds. */
    public val loadMs: Double = native.loadMs
    private val watch = Leaks.watch(this, "the model $folder", memory::close)

    /**
     * A conversation with its own cache, so only new tokens are prefilled. It allocates the cache: call it off the main
     * thread, or use [chatInBackground].
     *
     * @param system the system message, which [Session.reset] keeps.
     * @param history earlier turns, for example of another bundle's chat; [Session.reset] keeps them too.
     * @param config defaults of its answers.
     * @param tools functions that the model may call. [Session.send] and [Session.generate] call them, one after the
     *   other, and let the model answer to their results, until an answer has no calls. `stop`, another request, `reset`,
     *   `restore` or closing ends this too.
     * @param maxToolRounds how many times per request tool results are sent back to the model, 4 by default; calls
     *   beyond that are left in [Chat.toolCalls]. 0: the app makes the calls in [Chat.toolCalls] and sends the results.
     * @param templateVariables of the chat template, such as `{"enable_thinking": false}`, and `documents`.
     * @param contextPolicy what happens when the next question does not fit into the context.
     * @param adapter one of [adapters], for the whole conversation; null: the base model.
     * @throws StreamFuseException if the bundle has no chat template or no such adapter, memory runs out, or this model
     *   is closed.
     */
    @JvmOverloads
    @Blocking
    public fun chat(
        system: String? = null,
        history: List<Message> = emptyList(),
        config: GenerationConfig = GenerationConfig(),
        tools: List<Tool> = emptyList(),
        maxToolRounds: Int = MAX_TOOL_ROUNDS,
        templateVariables: JsonObject? = null,
        contextPolicy: ContextPolicy = ContextPolicy.FAIL,
        adapter: String? = null,
    ): Chat {
        val declared = if (tools.isEmpty()) null else JsonArray(tools.map { it.declaration }).toString()
        val variables = templateVariables?.toString()
        return open("a chat", { it.newChat(system, history, declared, variables, contextPolicy, adapter) }) {
            Chat(this, it, config.over(defaults), tools, maxToolRounds)
        }
    }

    /** [chat] on [Options.dispatcher]. If the caller is cancelled meanwhile, the chat is closed. */
    public suspend fun chatInBackground(
        system: String? = null,
        history: List<Message> = emptyList(),
        config: GenerationConfig = GenerationConfig(),
        tools: List<Tool> = emptyList(),
        maxToolRounds: Int = MAX_TOOL_ROUNDS,
        templateVariables: JsonObject? = null,
        contextPolicy: ContextPolicy = ContextPolicy.FAIL,
        adapter: String? = null,
    ): Chat = openedOn(options.dispatcher) {
        chat(system, history, config, tools, maxToolRounds, templateVariables, contextPolicy, adapter)
    }

    /**
     * A session that continues plain text, without a chat template. Prompts are independent; a prefix that a prompt
     * shares with the text before it is not prefilled again. Call it off the main thread, or use
     * [completionInBackground].
     *
     * @param config defaults of its answers.
     * @param adapter one of [adapters]; null: the base model.
     * @throws StreamFuseException if the bundle has no such adapter, memory runs out or this model is closed.
     */
    @JvmOverloads
    @Blocking
    public fun completion(config: GenerationConfig = GenerationConfig(), adapter: String? = null): Completion =
        open("a completion", { it.newCompletion(adapter) }) { Completion(this, it, config.over(defaults)) }

    /** [completion] on [Options.dispatcher]. If the caller is cancelled meanwhile, it is closed. */
    public suspend fun completionInBackground(
        config: GenerationConfig = GenerationConfig(),
        adapter: String? = null,
    ): Completion = openedOn(options.dispatcher) { completion(config, adapter) }

    /**
     * The number of tokens of a text in a message of a chat, without what the chat template adds. Any thread may call
     * it; it waits for no other call.
     *
     * @throws StreamFuseException if this model is closed.
     */
    public fun countTokens(text: String): Int = memory.countTokens(text)

    /**
     * Erases the answers that [Options.memoryFile] keeps, in memory and in the files, those of adapters too. Answers
     * that are still being generated are added when they end. It does nothing without a `memoryFile`.
     *
     * @throws StreamFuseException [ErrorCode.BAD_FILE] if a file cannot be emptied; [ErrorCode.CLOSED] if this model is
     *   closed.
     */
    @Blocking
    public fun forget(): Unit = memory.forget()

    /**
     * Repeats the passes that the exporter recorded in the bundle, and compares their outputs: whether this device
     * computes what it should. While it runs, it needs as much memory as one more chat; it takes half a second to
     * several seconds. Differences are also logged.
     *
     * @throws StreamFuseException [ErrorCode.BAD_FILE] if the bundle has no self-test or it is damaged;
     *   [ErrorCode.CLOSED] if this model is closed.
     */
    @Blocking
    public fun selfTest(): SelfTest {
        val found = SelfTest.of(memory.selfTest())
        for (difference in found.differences) log.warning("self-test of $name: $difference")
        return found
    }

    /** [selfTest] on [Options.dispatcher]. */
    public suspend fun selfTestInBackground(): SelfTest = withContext(options.dispatcher) { selfTest() }

    /**
     * Drops the caches of all chats and completions that are not answering, and gives their memory back to the system:
     * [Session.trim]. The weights are mapped files, which the system drops by itself. Does nothing on a closed model.
     *
     * @throws StreamFuseException the first failure, after the other caches are dropped.
     */
    @Blocking
    public fun trim(): Unit = memory.trim()

    /** [trim] on [Options.dispatcher]. */
    public suspend fun trimInBackground(): Unit = withContext(options.dispatcher) { trim() }

    /**
     * Frees the memory and closes the model's chats. A running answer ends at its next token, and this call waits for
     * that. A second call does nothing.
     */
    @Blocking
    override fun close() {
        watch.end()
        memory.close()
    }

    /** [close] on [Options.dispatcher], even if the caller is cancelled. */
    public suspend fun closeInBackground() {
        memory.stopAll() // a running answer may occupy all threads of the dispatcher
        withContext(NonCancellable + options.dispatcher) { close() }
    }

    private fun <S : Session> open(kind: String, native: (NativeModel) -> NativeSession, make: (Sequence) -> S): S {
        Leaks.sweep()
        val sequence = memory.open(native)
        try {
            return make(sequence).also { session ->
                sequence.use(session::readState)
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
        val adapters: Map<String, JsonObject> = emptyMap(),
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
        const val MAX_TOOL_ROUNDS = 4 // the same in Swift
        val reader = Json { ignoreUnknownKeys = true }
    }
}
