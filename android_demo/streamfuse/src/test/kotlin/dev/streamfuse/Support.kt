package dev.streamfuse

import java.io.File
import java.security.KeyPair
import java.security.Signature
import kotlinx.coroutines.flow.toList
import kotlinx.coroutines.runBlocking
import kotlinx.serialization.SerialName
import kotlinx.serialization.Serializable
import kotlinx.serialization.json.Json
import kotlinx.serialization.json.JsonObject

/** The repository that this build belongs to. */
object Repository {
    val root = File(System.getProperty("streamfuse.root")).canonicalFile
    val bundles = listOf("demo", "e2e", "sql")

    /** A folder among build outputs, on the file system of the bundles. */
    fun scratch(name: String): File = File(System.getProperty("streamfuse.scratch"), name).also { it.mkdirs() }

    fun bundle(name: String): File = File(root, "build/$name")
}

/** Models that many tests share, loaded once. */
object Models {
    private val open = mutableMapOf<String, Model>()

    @Synchronized
    fun of(bundle: String): Model = open.getOrPut(bundle) {
        StreamFuse.loadBlocking(Repository.bundle(bundle), Options(cacheDir = Repository.scratch("costs")))
    }

    val demo: Model get() = of("demo")
}

/** What Python answers, in the same run: tests/helpers/peer.py. */
object Python {
    @Serializable
    class Request(
        val bundle: String,
        val turns: List<String>,
        val config: GenerationConfig,
        val system: String? = null,
        val raw: Boolean = false,
        val restore: String? = null,
        val save: String? = null,
        @SerialName("context_policy") val contextPolicy: String? = null,
        val adapter: String? = null,
        val scores: List<List<String>>? = null,
    )

    @Serializable
    class Top(val token: Int, @SerialName("log_prob") val logProb: Double, val text: String)

    @Serializable
    class Turn(
        val text: String,
        val tokens: List<Int>,
        val sources: List<String>,
        val statistics: JsonObject,
        val seconds: Double,
        @SerialName("log_probs") val logProbs: List<Double> = emptyList(),
        @SerialName("top_log_probs") val top: List<List<Top>> = emptyList(),
    ) {
        val topLogProbs: List<List<TokenLogProb>>
            get() = top.map { place -> place.map { TokenLogProb(it.token, it.logProb, it.text) } }
    }

    @Serializable
    class Reply(
        val turns: List<Turn> = emptyList(),
        val messages: List<Message> = emptyList(),
        val error: String? = null,
        val scores: List<List<Double>>? = null,
    )

    private val variables =
        mapOf("PYTHONPATH" to "src", "PYTHONSAFEPATH" to "1", "STREAMFUSE_HOME" to Repository.scratch("python").path)
    private val process by lazy {
        ProcessBuilder(System.getProperty("streamfuse.python"), "tests/helpers/peer.py")
            .directory(Repository.root)
            .redirectError(ProcessBuilder.Redirect.INHERIT)
            .apply { environment() += variables }
            .start()
    }
    private val input by lazy { process.outputStream.bufferedWriter() }
    private val output by lazy { process.inputStream.bufferedReader() }

    /** Runs a command of `streamfuse` to its end. */
    fun run(vararg arguments: String) {
        val command = listOf(System.getProperty("streamfuse.python"), "-m", "streamfuse") + arguments
        val process = ProcessBuilder(command).directory(Repository.root).inheritIO()
            .apply { environment() += variables }
            .start()
        check(process.waitFor() == 0) { "streamfuse ${arguments.joinToString(" ")} failed" }
    }

    @Synchronized
    fun ask(request: Request): Reply {
        input.appendLine(Json.encodeToString(Request.serializer(), request))
        input.flush()
        val reply = Json.decodeFromString(Reply.serializer(), output.readLine() ?: error("Python has ended"))
        check(reply.error == null) { "Python failed: ${reply.error}" }
        return reply
    }

    fun ask(
        bundle: String,
        turns: List<String>,
        config: GenerationConfig,
        system: String? = null,
        raw: Boolean = false,
        adapter: String? = null,
    ): List<Turn> = ask(Request(Repository.bundle(bundle).path, turns, config, system, raw, adapter = adapter)).turns
}

/** An answer in full. */
class Answered(val pieces: List<Piece>, val statistics: Statistics) {
    val text = pieces.joinToString("") { it.text }
    val tokens = pieces.mapNotNull { it.token }
    val sources = pieces.filter { it.token != null }.map { it.source.name.lowercase() }
    val logProbs = pieces.mapNotNull { it.logProb }
    val topLogProbs = pieces.map { it.topLogProbs }.filter { it.isNotEmpty() }
}

fun Session.answer(prompt: String, config: GenerationConfig = GenerationConfig()): Answered = runBlocking {
    Answered(send(prompt, config).toList(), statistics!!)
}

/** The same without times. */
fun Statistics.untimed(): Statistics = copy(
    modelLoadMs = 0.0, measureMs = 0.0, prefillMs = 0.0, firstTokenMs = 0.0, decodeTokensPerSecond = 0.0,
    prefillTokensPerSecond = 0.0, timeMs = timeMs.mapValues { 0.0 }, costMs = costMs.mapValues { 0.0 },
)

/** The exception of a call that must fail. */
inline fun <reified E : Throwable> failureOf(body: () -> Unit): E {
    val error = runCatching(body).exceptionOrNull()
    check(error is E) { "expected ${E::class.simpleName}, not $error" }
    return error
}

/** A short, certain answer: greedy, drafted by streams at one width. */
val fixed = GenerationConfig(maxNewTokens = 16, temperature = 0.0, width = 8)

/** As `streamfuse bundle sign` does it, by the JVM's own ed25519. */
fun sign(bundle: File, key: KeyPair): File {
    val signer = Signature.getInstance("Ed25519").apply { initSign(key.private) }
    signer.update("streamfuse bundle manifest v1\n".encodeToByteArray())
    signer.update(File(bundle, "manifest.json").readBytes())
    val file = File(bundle, "manifest.sig")
    file.delete() // it may be a link
    file.writeBytes(signer.sign())
    return bundle
}

/** The 32 bytes at the end of the JVM's form of a public key, as `streamfuse bundle keygen` writes them. */
val KeyPair.line get() = public.encoded.takeLast(32).joinToString("") { "%02x".format(it) }
