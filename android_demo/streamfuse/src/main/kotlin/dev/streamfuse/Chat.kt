package dev.streamfuse

import kotlinx.coroutines.currentCoroutineContext
import kotlinx.coroutines.ensureActive
import kotlinx.coroutines.flow.Flow
import kotlinx.serialization.builtins.ListSerializer
import kotlinx.serialization.json.Json

/** A conversation: [Model.chat]. */
public class Chat internal constructor(
    model: Model,
    sequence: Sequence,
    defaults: GenerationConfig,
    tools: List<Tool>,
    private val maxToolRounds: Int,
) : Session(model, sequence, defaults) {
    private val tools = tools.associateBy { it.name }

    /** The turns so far; an answer in progress is added when it ends. */
    @Volatile
    public var messages: List<Message> = emptyList()
        private set

    /** The tool calls of the last turn in [messages]; those without a result are answered by [send] or [generate]. */
    @Volatile
    public var toolCalls: List<ToolCall> = emptyList()
        private set

    /**
     * Like [Session.send], with the results of the last answer's tool calls instead of a text: one for each call, as
     * chat templates expect. The flow fails with [ErrorCode.BAD_ARGUMENT] if the last answer has no such call.
     */
    public fun send(results: List<ToolResult>, config: GenerationConfig = GenerationConfig()): Flow<Piece> =
        send(promptOf(results), config)

    /** Like [Session.send] with a callback, with the results of the last answer's tool calls instead of a text. */
    @JvmOverloads
    public fun send(
        results: List<ToolResult>,
        callback: GenerationCallback,
        config: GenerationConfig = GenerationConfig(),
    ): Unit = send(promptOf(results), callback, config)

    /**
     * Like [Session.generate], with the results of the last answer's tool calls instead of a text.
     *
     * @throws StreamFuseException ([ErrorCode.BAD_ARGUMENT]) if the last answer has no such call.
     */
    public suspend fun generate(results: List<ToolResult>, config: GenerationConfig = GenerationConfig()): Answer =
        generate(promptOf(results), config)

    internal override fun readMessages(native: NativeSession) {
        val turns = Message.read(native.messages())
        messages = turns
        toolCalls = turns.lastOrNull()?.toolCalls.orEmpty()
    }

    internal override suspend fun followUp(answer: Generation, round: Int): Prompt? {
        if (answer.stopped || answer.toolCalls.isEmpty() || round >= maxToolRounds) return null
        val results = answer.toolCalls.map { call ->
            currentCoroutineContext().ensureActive()
            if (!goesOn(answer)) return null // the calls that are left are not made
            ToolResult(call.id, resultOf(call))
        }
        return promptOf(results)
    }

    private suspend fun resultOf(call: ToolCall): String {
        val tool = tools[call.name]
        if (tool != null) return tool.call(call.arguments)
        return "error: there is no tool ${call.name}; the tools are ${tools.keys.joinToString()}"
    }

    private fun promptOf(results: List<ToolResult>) = Prompt(Json.encodeToString(resultsOf, results), isResults = true)

    private companion object {
        val resultsOf = ListSerializer(ToolResult.serializer())
    }
}

/** A continuation of plain text: [Model.completion]. */
public class Completion internal constructor(model: Model, sequence: Sequence, defaults: GenerationConfig) :
    Session(model, sequence, defaults) {
    internal override fun readMessages(native: NativeSession): Unit = Unit

    internal override suspend fun followUp(answer: Generation, round: Int): Prompt? = null
}
