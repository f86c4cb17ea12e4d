package dev.streamfuse

/**
 * A bundle that is open: checked files, tokenizer, loaded graphs. Any thread may use it.
 *
 * Close it when it is no longer needed: its memory is not the garbage collector's.
 */
public class Model internal constructor() : AutoCloseable {
    /** The name of the model, for example `HuggingFaceTB/SmolLM2-135M-Instruct`. */
    public val name: String get() = TODO()

    /** The licence of its weights; null where the bundle does not know. */
    public val license: String? get() = TODO()

    /** How many tokens prompt and answer may have together. */
    public val contextLength: Int get() = TODO()

    /** Whether the bundle can draft. */
    public val hasSpeculativeDecodingSupport: Boolean get() = TODO()

    /** Whether the bundle has a chat template; without one only [completion] works. */
    public val canChat: Boolean get() = TODO()

    /** Values for [GenerationConfig.width]; empty where the bundle has no verify methods. */
    public val widths: List<Int> get() = TODO()

    /** The bundle's defaults: every field but [GenerationConfig.width] has a value. */
    public val defaults: GenerationConfig get() = TODO()

    /** Threads that the engine runs on. */
    public val threads: Int get() = TODO()

    /** The manifest as JSON text, as it lies in the bundle. */
    public val manifest: String get() = TODO()

    /** Milliseconds that loading took. */
    public val loadMs: Double get() = TODO()

    /**
     * A conversation with a cache of its own, so that only new words are read.
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
    ): Chat = TODO()

    /**
     * A sequence that continues plain text, without a chat template. Each prompt stands alone; what it shares with the
     * text before it, from the beginning on, is not read again.
     *
     * @param config defaults of its answers.
     * @throws IllegalStateException where this model is closed.
     */
    @JvmOverloads
    public fun completion(config: GenerationConfig = GenerationConfig()): Completion = TODO()

    /**
     * Gives the memory back, and closes its chats: an answer that runs is ended at its next token, for which this call
     * waits. Nothing happens the second time.
     */
    override fun close(): Unit = TODO()
}
