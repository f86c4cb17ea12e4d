package dev.streamfuse

import java.io.BufferedReader
import java.io.File
import java.io.Writer
import kotlinx.coroutines.runBlocking
import kotlinx.serialization.SerialName
import kotlinx.serialization.Serializable
import kotlinx.serialization.json.Json
import kotlinx.serialization.json.JsonObject
import kotlinx.serialization.json.JsonPrimitive
import kotlinx.serialization.json.jsonPrimitive
import org.junit.jupiter.api.AfterAll
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.params.ParameterizedTest
import org.junit.jupiter.params.provider.MethodSource

/**
 * The golden traces of tests/traces through the Kotlin API: the same tokens, passes and finish reasons. The core runs
 * in a Python process with the arithmetic model (tests/helpers/trace_peer.py), as the JNI functions take no engine.
 */
class TraceTest {
    @ParameterizedTest
    @MethodSource("loops")
    fun `a loop gives the tokens and passes of its trace`(name: String) = runBlocking<Unit> {
        val trace = json.decodeFromString<Trace>(File(folder, "$name.json").readText())
        val native = TracedSession(name)
        val model = Model(TracedModel(native), File(name), Options())
        val session = model.completion()
        var passes = 0
        native.beforePass = { if (++passes == trace.stop?.run) session.stop() }
        val tokens = mutableListOf<Int?>()
        session.send("the trace's own prompt", trace.settings).collect {
            tokens += it.token
            if (tokens.size == trace.stop?.tokens) session.stop()
        }
        assertEquals(trace.generated, tokens)
        val statistics = session.statistics!!
        assertEquals(trace.finishReason, statistics.finishReason)
        assertEquals(trace.steps.groupingBy { it.method }.eachCount(), statistics.widths)
        assertEquals(minOf(trace.cached ?: Int.MAX_VALUE, trace.prompt.size - 1), statistics.prefilledTokens)
        model.close()
    }

    companion object {
        private val folder = File(Repository.root, "tests/traces")

        @JvmStatic
        fun loops(): List<String> =
            folder.list()!!.filter { it.startsWith("loop_") }.map { it.removeSuffix(".json") }.sorted()

        @JvmStatic
        @AfterAll
        fun end() = TracePeer.end()
    }
}

private val json = Json { ignoreUnknownKeys = true }

/** The contents of a loop_*.json. [sampling] and [config] have the fields of a [GenerationConfig]. */
@Serializable
private class Trace(
    val spec: Spec,
    val sampling: JsonObject,
    val config: JsonObject,
    val prompt: List<Int>,
    val generated: List<Int>,
    val steps: List<Step>,
    @SerialName("finish_reason") val finishReason: String,
    val stop: Stop? = null,
    val cached: Int? = null,
) {
    @Serializable
    class Spec(val widths: Map<String, List<Int>>)

    @Serializable
    class Step(val method: String)

    @Serializable
    class Stop(val run: Int? = null, val tokens: Int? = null)

    val settings: GenerationConfig
        get() {
            val seed = sampling.getValue("seed").jsonPrimitive.content.toULong() // text, as JSON has no such numbers
            val fields = JsonObject(sampling + config + ("seed" to JsonPrimitive(seed.toLong())))
            val settings = json.decodeFromJsonElement(GenerationConfig.serializer(), fields)
            return settings.copy(width = settings.width ?: spec.widths.values.map { it[0] }.sorted()[spec.widths.size / 2])
        }
}

/** The process of tests/helpers/trace_peer.py, which has one session at a time. */
private object TracePeer {
    private val process by lazy {
        val variables = mapOf("PYTHONPATH" to "src:tests/helpers:tools", "PYTHONSAFEPATH" to "1")
        ProcessBuilder(System.getProperty("streamfuse.python"), "tests/helpers/trace_peer.py")
            .directory(Repository.root)
            .redirectError(ProcessBuilder.Redirect.INHERIT)
            .apply { environment() += variables }
            .start()
    }
    private val input: Writer by lazy { process.outputStream.bufferedWriter() }
    private val output: BufferedReader by lazy { process.inputStream.bufferedReader() }

    fun tell(line: String) {
        input.write("$line\n")
        input.flush()
    }

    /** The reply to a request; [beforePass] is called before each pass that it takes. */
    fun ask(request: String, beforePass: () -> Unit = {}): String {
        tell(request)
        while (true) {
            val line = output.readLine() ?: error("Python has ended")
            if (line != "pass") return line
            beforePass()
            tell("go")
        }
    }

    fun end() = input.close()
}

private class TracedModel(private val session: TracedSession) : NativeModel by FakeNative() {
    override fun newCompletion(adapter: String?) = session
}

/** The core's session on a trace's engine, whatever the prompt. Its pieces are tokens without text. */
private class TracedSession(name: String) : NativeSession {
    var beforePass: () -> Unit = {}

    @Serializable
    private class Token(val token: Int? = null, val source: String = "")

    init {
        TracePeer.ask("open $name")
    }

    override fun start(prompt: Prompt, config: GenerationConfig) {
        TracePeer.ask("start ${Json.encodeToString(GenerationConfig.serializer(), config)}")
    }

    override fun next(): Piece? {
        val next = Json.decodeFromString<Token>(TracePeer.ask("next") { beforePass() })
        return next.token?.let { Piece("", it, Source.valueOf(next.source.uppercase())) }
    }

    override fun stop() = TracePeer.tell("stop")

    override fun finish() {
        TracePeer.ask("finish")
    }

    override fun statistics() = TracePeer.ask("statistics")

    override fun messages() = "[]"

    override fun toolCalls() = "[]"

    override fun usedTokens() = 0

    override fun reset() = Unit

    override fun trim() = Unit

    override fun save(file: File) = error("a trace is not saved")

    override fun restore(file: File) = error("a trace is not restored")

    override fun free() = Unit
}
