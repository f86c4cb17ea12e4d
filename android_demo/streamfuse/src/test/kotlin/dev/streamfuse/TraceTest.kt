package dev.streamfuse

import java.io.BufferedReader
import java.io.File
import java.io.Writer
import kotlinx.coroutines.runBlocking
import kotlinx.serialization.SerialName
import kotlinx.serialization.Serializable
import kotlinx.serialization.json.Json
import kotlinx.serialization.json.JsonObject
import kotlinx.serialization.json.jsonObject
import org.junit.jupiter.api.AfterAll
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertThrows
import org.junit.jupiter.api.Test
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
        val trace = Json.decodeFromString<Trace>(File(folder, "$name.json").readText())
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

    @Test
    fun `a trace with an unknown or a missing field is refused`() {
        val whole = Json.parseToJsonElement(File(folder, "loop_greedy.json").readText()).jsonObject
        val fields = whole.keys.map { JsonObject(whole - it) } + JsonObject(whole + ("other" to whole.getValue("format")))
        for (changed in fields) {
            assertThrows(IllegalArgumentException::class.java) { Json.decodeFromString<Trace>("$changed") }
        }
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

/**
 * The contents of a loop_*.json. Unknown fields are refused, and only those that tests/traces/README.md calls optional
 * may be missing.
 */
@Serializable
private class Trace(
    val format: Int,
    val about: String,
    val spec: Spec,
    val accuracy: Int,
    val sampling: Sampling,
    val config: Config,
    val prompt: List<Int>,
    val constraint: Constraint? = null,
    val stop: Stop? = null,
    val steps: List<Step>,
    val generated: List<Int>,
    @SerialName("finish_reason") val finishReason: String,
    val cached: Int? = null,
) {
    init {
        require(format == 1) { "format $format" }
        require((stop == null) == (cached == null)) { "stop and cached go together" }
    }

    @Serializable
    class Spec(
        val capacity: Int,
        @SerialName("vocab_size") val vocabSize: Int,
        @SerialName("num_streams") val numStreams: Int,
        @SerialName("top_k") val topK: Int,
        @SerialName("prefill_rows") val prefillRows: Int,
        val widths: Map<String, List<Int>>,
        @SerialName("eos_token_ids") val eosTokenIds: List<Int>,
        @SerialName("default_width") val defaultWidth: Int?,
        val deferred: Boolean = false,
        @SerialName("stream_nodes") val streamNodes: Map<String, Int> = emptyMap(),
    ) {
        init {
            require(deferred == streamNodes.isNotEmpty()) { "deferred and stream_nodes go together" }
        }
    }

    @Serializable
    class Sampling(
        val temperature: Double,
        @SerialName("top_k") val topK: Int,
        @SerialName("top_p") val topP: Double,
        @SerialName("min_p") val minP: Double,
        @SerialName("repetition_penalty") val repetitionPenalty: Double,
        val seed: String, // text, as JSON has no such numbers
    )

    @Serializable
    class Config(
        @SerialName("max_new_tokens") val maxNewTokens: Int,
        @SerialName("stop_token_ids") val stopTokenIds: List<Int>,
        @SerialName("stop_strings") val stopStrings: List<String>,
        @SerialName("ignore_eos") val ignoreEos: Boolean,
        val speculative: Boolean,
        val width: Int?,
    )

    @Serializable
    class Constraint(val edges: List<List<List<Int>>>, @SerialName("may_end") val mayEnd: List<Int>)

    @Serializable
    class Stop(val run: Int? = null, val tokens: Int? = null) {
        init {
            require((run == null) != (tokens == null)) { "stop has run or tokens" }
        }
    }

    @Serializable
    class Step(
        val method: String,
        val tree: Tree,
        val kept: List<Int>,
        @SerialName("stream_ids") val streamIds: List<List<List<Int>>>,
        @SerialName("stream_log_probs") val streamLogProbs: List<List<List<Double>>>,
        val chosen: List<Int>,
        val path: List<Int>,
        val emitted: List<Int>,
        val length: Int,
    )

    @Serializable
    class Tree(val tokens: List<Int>, val parents: List<Int>, @SerialName("log_probs") val logProbs: List<Double>)

    val settings: GenerationConfig
        get() =
            GenerationConfig(
                maxNewTokens = config.maxNewTokens,
                temperature = sampling.temperature,
                topK = sampling.topK,
                topP = sampling.topP,
                minP = sampling.minP,
                repetitionPenalty = sampling.repetitionPenalty,
                seed = sampling.seed.toULong().toLong(),
                stop = config.stopStrings,
                stopTokenIds = config.stopTokenIds,
                ignoreEos = config.ignoreEos,
                enableSpeculativeDecoding = config.speculative,
                width = config.width ?: spec.widths.values.map { it[0] }.sorted()[spec.widths.size / 2],
            )
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

    override fun prepare() = error("a trace measures nothing")

    override fun score(text: String, answer: String) = error("a trace scores nothing")

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
