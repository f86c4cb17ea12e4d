package dev.streamfuse.app.model

import dev.streamfuse.Channel as TextChannel
import dev.streamfuse.ContextPolicy
import dev.streamfuse.ErrorCode
import dev.streamfuse.GenerationConfig
import dev.streamfuse.Message
import dev.streamfuse.Options
import dev.streamfuse.Piece
import dev.streamfuse.Role
import dev.streamfuse.SelfTest
import dev.streamfuse.Source
import dev.streamfuse.Statistics
import dev.streamfuse.StreamFuseException
import java.io.File
import java.io.IOException
import kotlinx.coroutines.channels.Channel
import kotlinx.coroutines.flow.Flow
import kotlinx.coroutines.flow.flow

/**
 * A library whose tokens are a hash of the whole conversation, so a turn that is lost, repeated or read again in another
 * form changes the text. A folder with manifest.json is a bundle; one that also contains `damaged` is refused.
 */
class FakeEngine : Engine {
    override val backends: Map<String, String?>
        get() {
            onBackends()
            return mapOf("kernels" to null)
        }

    /** Called when the app asks for the backends. */
    var onBackends: () -> Unit = {}

    /** Words that may be written; null: as many as wanted. */
    var gate: Channel<Unit>? = null
    var open = 0
        private set
    var histories = 0
        private set
    var damagedCaches = false

    /** Whether all tokens are thinking, which the app does not show. */
    var thinks = false

    /** What the last model was opened with. */
    var memory: File? = null
        private set
    var policy = ContextPolicy.FAIL
        private set
    var forgotten = 0
        private set

    /** Why no session can be opened; null: one can. */
    var sessionError: Exception? = null

    /** Why the kept answers cannot be erased; null: they can. */
    var forgetError: Exception? = null

    /** The result of a self-test; null if the bundle has none. */
    var selfTest: SelfTest? = null

    override suspend fun open(folder: File, options: Options, policy: ContextPolicy): OpenModel {
        if (!File(folder, "manifest.json").isFile) throw IOException("${folder.name} holds no manifest.json")
        if (File(folder, "damaged").exists()) {
            throw StreamFuseException(ErrorCode.BAD_FILE, "model.pte is not the file that the manifest names.")
        }
        open++
        memory = options.memoryFile
        this.policy = policy
        return FakeModel(options.threads ?: 2, options.memoryFile)
    }

    private inner class FakeModel(override val threads: Int, private val answers: File?) : OpenModel {
        override val defaults = GenerationConfig(maxNewTokens = 20, temperature = 0.0)
        override val canChat = true

        override fun session(system: String?, history: List<Message>): OpenSession {
            sessionError?.let { throw it }
            if (history.isNotEmpty()) histories++
            return FakeSession(defaults, listOf(Message(Role.SYSTEM, system.orEmpty())) + history)
        }

        override fun forget() {
            forgotten++
            forgetError?.let { throw it }
            answers?.writeText("")
        }

        override suspend fun selfTest() = selfTest ?: throw StreamFuseException(ErrorCode.BAD_FILE, "There is no selftest.npz.")

        override fun close() {
            open--
        }
    }

    private inner class FakeSession(private val defaults: GenerationConfig, private var messages: List<Message>) : OpenSession {
        @Volatile private var stopped = false
        override var statistics: Statistics? = null

        override fun send(text: String, config: GenerationConfig): Flow<Piece> = flow {
            val chosen = config.over(defaults)
            if (text.contains("refuse")) throw StreamFuseException(ErrorCode.BAD_ARGUMENT, "This prompt is too long.")
            val drafts = chosen.enableSpeculativeDecoding != false
            val asked = messages + Message(Role.USER, text)
            val answer = StringBuilder()
            stopped = false
            var count = 0
            try {
                while (count < chosen.maxNewTokens!! && !stopped) {
                    gate?.receive()
                    if (stopped) break
                    val token = ("$asked$answer".hashCode() + (chosen.temperature!! * 1000 + (chosen.seed ?: 0)).toInt()).mod(1000)
                    val word = "${if (count == 0) "" else " "}w$token"
                    answer.append(word)
                    count++
                    val source = if (drafts) Source.entries[count % 4] else Source.MODEL
                    emit(Piece(word, token, source, channel = if (thinks) TextChannel.THINKING else TextChannel.ANSWER))
                }
            } finally {
                val end = if (count == chosen.maxNewTokens) "length" else "stopped"
                if (count > 0) messages = asked + Message(Role.ASSISTANT, answer.toString())
                statistics = Statistics(
                    generatedTokens = count, firstTokenMs = 12.0, decodeTokensPerSecond = if (drafts) 40.0 else 20.0,
                    meanAcceptedTokens = if (drafts) 2.0 else 1.0, draftTokensProposed = if (drafts) 2 * count else 0,
                    draftTokensAccepted = if (drafts) count / 2 else 0, finishReason = end, speculative = drafts,
                    fallbackReason = if (drafts) null else "off by request", costMs = mapOf("decode" to 50.0),
                )
            }
        }

        override fun stop() {
            stopped = true
        }

        override fun save(file: File) = file.writeText(messages.joinToString("\u0001") { "${it.role}\u0002${it.content}" })

        override fun restore(file: File) {
            if (damagedCaches) throw StreamFuseException(ErrorCode.BAD_FILE, "This is no saved chat.")
            messages = file.readText().split("\u0001").map { line ->
                line.split("\u0002").let { Message(Role.valueOf(it[0]), it[1]) }
            }
        }

        override fun close() = Unit
    }
}

class FakePreferences(vararg kept: Pair<String, String>) : Preferences {
    var kept: Map<String, String> = mapOf(*kept)
        private set
    var writes = 0
        private set

    override fun read() = kept

    override fun write(all: Map<String, String>) {
        kept = all
        writes++
    }
}
