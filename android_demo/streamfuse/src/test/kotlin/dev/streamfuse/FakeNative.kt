package dev.streamfuse

import java.io.File
import kotlinx.serialization.json.Json

/** A native half in Kotlin: its tokens count up from the number of tokens before them. Any step of it can fail, or wait. */
internal class FakeNative : NativeModel {
    val sessions = mutableListOf<FakeNativeSession>()
    var closed = false
        private set

    override val manifest = """{"backend": "kernels", "model": {"name": "fake"}, "methods": {}, "cache": {"capacity": 100}}"""
    override val description = """{"threads": 1}"""
    override val loadMs = 1.0

    override fun defaults() = GenerationConfig(
        maxNewTokens = 5, temperature = 0.0, topK = 0, topP = 1.0, minP = 0.0, repetitionPenalty = 1.0, seed = 0,
        ignoreEos = false, enableSpeculativeDecoding = true, logProbs = false,
        topLogProbs = 0,
    ) to true

    /** The tools and template variables of the last chat. */
    var declared: Pair<String?, String?> = null to null

    /** Called before a chat is there. */
    var beforeChat: () -> Unit = {}

    override fun newChat(
        system: String?,
        history: List<Message>,
        tools: String?,
        variables: String?,
        policy: ContextPolicy,
        adapter: String?,
    ): FakeNativeSession {
        beforeChat()
        declared = tools to variables
        val first = listOfNotNull(system?.let { Message(Role.SYSTEM, it) }) + history
        return FakeNativeSession(first).also { sessions += it }
    }

    override fun newCompletion(adapter: String?) = newChat(null, emptyList(), null, null, ContextPolicy.FAIL, adapter)

    override fun countTokens(text: String) = text.length

    override fun forget() = Unit

    /** Called in a self-test. */
    var beforeTest: () -> Unit = {}

    override fun selfTest(): String {
        beforeTest()
        check(!closed)
        return """{"passed": true, "equal": true, "tokens_equal": true, "ms": 1.0, "methods": {}, "differences": []}"""
    }

    override fun close() {
        check(sessions.all { it.freed }) { "a session outlives its model" }
        closed = true
    }
}

/** An answer that a fake gives instead of counting: its pieces, calls and finish reason. */
internal class Scripted(val pieces: List<Piece>, val calls: List<ToolCall> = emptyList(), val reason: String = "stop") {
    constructor(text: String, reason: String = "stop") : this(listOf(Piece(text, 1)), reason = reason)
}

internal class FakeNativeSession(private val first: List<Message>) : NativeSession {
    private var turns = first
    private var question: Prompt? = null
    private var script: Scripted? = null
    private var calls = emptyList<ToolCall>()
    private var answer = ""
    private var left = 0
    private var count = 0
    private var reason = "stopped"
    @Volatile private var stopping = false
    var freed = false
        private set

    /** The next answers; after them it counts. */
    val scripts = ArrayDeque<Scripted>()

    /** What it was asked. */
    val asked = mutableListOf<Pair<Prompt, GenerationConfig>>()

    /** How many times it was prepared. */
    var prepared = 0
        private set

    override fun prepare() {
        check(!freed && question == null) { "the last answer has not been ended" }
        prepared++
    }

    /** Called in a score, which gives the lengths of its texts. */
    var beforeScore: () -> Unit = {}

    override fun score(text: String, answer: String): List<Double> {
        check(!freed && question == null) { "the last answer has not been ended" }
        stopping = false
        beforeScore()
        if (stopping) throw StreamFuseException(ErrorCode.CANCELLED, "stopped")
        return listOf(-text.length.toDouble(), -answer.length.toDouble())
    }

    /** What the end of an answer fails with. */
    var endFails: RuntimeException? = null

    /** Called before each token is there, the first included: where a test holds the prompt, or fails. */
    var beforeToken: (index: Int) -> Unit = {}

    override fun start(prompt: Prompt, config: GenerationConfig) {
        check(!freed && question == null) { "the last answer has not been ended" }
        question = prompt
        asked += prompt to config
        script = scripts.removeFirstOrNull()
        calls = emptyList()
        answer = ""
        left = config.maxNewTokens!!
        count = 0
        reason = "stopped"
        stopping = false
    }

    override fun next(): Piece? {
        check(!freed)
        if (question == null) return null
        beforeToken(count)
        script?.let { return scripted(it) }
        if (left == 0 && !stopping) reason = "length"
        if (left == 0 || stopping) return null.also { finish() }
        left--
        val text = " ${turns.sumOf { it.content.length } + count++}"
        answer += text
        return Piece(text, count)
    }

    private fun scripted(script: Scripted): Piece? {
        if (count < script.pieces.size && !stopping) {
            return script.pieces[count++].also { if (it.channel == Channel.ANSWER) answer += it.text }
        }
        if (!stopping) reason = script.reason
        finish()
        return null
    }

    override fun stop() {
        stopping = true
    }

    override fun finish() {
        val asked = question ?: return
        question = null
        endFails?.let { throw it }
        if (count == 0 && reason == "stopped") {
            if (asked.isResults) calls = turns.last().toolCalls // they have no results again
            return
        }
        script?.let { if (count == it.pieces.size) calls = it.calls } // they are whole, whatever ended the answer
        val results = if (asked.isResults) Json.decodeFromString<List<ToolResult>>(asked.text) else emptyList()
        val turn = results.map { Message(Role.TOOL, it.content, toolCallId = it.toolCallId) }
            .ifEmpty { listOf(Message(Role.USER, asked.text)) }
        turns = turns + turn + Message(Role.ASSISTANT, answer, calls)
    }

    override fun statistics() = """{"generated_tokens": $count, "finish_reason": "$reason"}"""

    override fun messages() = Message.write(turns)

    override fun toolCalls() = Json.encodeToString(calls)

    override fun usedTokens() = turns.sumOf { it.content.length }

    override fun reset() {
        turns = first
    }

    var trims = 0
        private set

    /** What trimming fails with. */
    var trimFails: RuntimeException? = null

    override fun trim() {
        check(!freed)
        trims++
        trimFails?.let { throw it }
    }

    override fun save(file: File) = file.writeText(messages())

    override fun restore(file: File) {
        turns = Message.read(file.readText())
    }

    override fun free() {
        check(!freed) { "freed twice" }
        freed = true
    }
}

/** A model over the fake. */
internal fun FakeNative.model(options: Options = Options(), name: String = "fake") =
    Model(this, File(name), options)
