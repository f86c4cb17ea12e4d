package dev.streamfuse

import java.io.File
import kotlinx.serialization.builtins.ListSerializer
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
        ignoreEos = false, enableSpeculativeDecoding = true,
    ) to true

    override fun newChat(system: String?, history: List<Message>) =
        FakeNativeSession(listOfNotNull(system?.let { Message(Role.SYSTEM, it) }) + history).also { sessions += it }

    override fun newCompletion() = newChat(null, emptyList())

    override fun close() {
        check(sessions.all { it.freed }) { "a session outlives its model" }
        closed = true
    }
}

internal class FakeNativeSession(private val first: List<Message>) : NativeSession {
    private val json = ListSerializer(Message.serializer())
    private var turns = first
    private var question: String? = null
    private var answer = ""
    private var left = 0
    private var count = 0
    private var reason = "stopped"
    @Volatile private var stopping = false
    var freed = false
        private set

    /** What the end of an answer fails with. */
    var endFails: RuntimeException? = null

    /** Called before each token is there, the first included: where a test holds the prompt, or fails. */
    var beforeToken: (index: Int) -> Unit = {}

    override fun start(prompt: String, config: GenerationConfig) {
        check(!freed && question == null) { "the last answer has not been ended" }
        question = prompt
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
        if (left == 0 && !stopping) reason = "length"
        if (left == 0 || stopping) return null.also { finish() }
        left--
        val text = " ${turns.sumOf { it.content.length } + count++}"
        answer += text
        return Piece(text, count)
    }

    override fun stop() {
        stopping = true
    }

    override fun finish() {
        val asked = question ?: return
        question = null
        endFails?.let { throw it }
        if (count > 0 || reason != "stopped") turns = turns + Message(Role.USER, asked) + Message(Role.ASSISTANT, answer)
    }

    override fun statistics() = """{"generated_tokens": $count, "finish_reason": "$reason"}"""

    override fun messages() = Json.encodeToString(json, turns)

    override fun reset() {
        turns = first
    }

    override fun save(file: File) = file.writeText(messages())

    override fun restore(file: File) {
        turns = Json.decodeFromString(json, file.readText())
    }

    override fun free() {
        check(!freed) { "freed twice" }
        freed = true
    }
}

/** A model over the fake. */
internal fun FakeNative.model(options: Options = Options(), name: String = "fake") =
    Model(this, File(name), options)
