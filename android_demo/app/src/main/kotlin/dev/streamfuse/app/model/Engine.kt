package dev.streamfuse.app.model

import dev.streamfuse.ContextPolicy
import dev.streamfuse.GenerationConfig
import dev.streamfuse.Message
import dev.streamfuse.Model
import dev.streamfuse.Options
import dev.streamfuse.Piece
import dev.streamfuse.SelfTest
import dev.streamfuse.Session
import dev.streamfuse.Statistics
import dev.streamfuse.StreamFuse
import java.io.File
import kotlinx.coroutines.flow.Flow

/** The part of the library that the app's models use. Their tests replace it by a fake without native code. */
interface Engine {
    /** As [StreamFuse.backends]. */
    val backends: Map<String, String?>

    /** As [StreamFuse.load]. [policy] is that of the model's chats. */
    suspend fun open(folder: File, options: Options, policy: ContextPolicy = ContextPolicy.FAIL): OpenModel
}

interface OpenModel : AutoCloseable {
    val defaults: GenerationConfig

    /** False: the bundle has no chat template, so the model only continues text and takes no system prompt. */
    val canChat: Boolean
    val threads: Int

    fun session(system: String? = null, history: List<Message> = emptyList()): OpenSession

    /** As [Model.forget]. */
    fun forget()

    /** As [Model.selfTest]. */
    suspend fun selfTest(): SelfTest
}

/** As [Session]. */
interface OpenSession : AutoCloseable {
    val statistics: Statistics?

    fun send(text: String, config: GenerationConfig): Flow<Piece>

    fun stop()

    fun save(file: File)

    fun restore(file: File)
}

/** The library itself. [cacheDir] stores the pass latencies that it measures on this device. */
class LibraryEngine(private val cacheDir: File) : Engine {
    override val backends get() = StreamFuse.backends

    override suspend fun open(folder: File, options: Options, policy: ContextPolicy): OpenModel {
        options.memoryFile?.parentFile?.mkdirs()
        return LibraryModel(StreamFuse.load(folder, options.copy(cacheDir = cacheDir)), policy)
    }
}

private class LibraryModel(private val model: Model, private val policy: ContextPolicy) : OpenModel, AutoCloseable by model {
    override val defaults get() = model.defaults
    override val canChat get() = model.canChat
    override val threads get() = model.threads

    override fun session(system: String?, history: List<Message>): OpenSession = LibrarySession(
        if (model.canChat) model.chat(system, history, contextPolicy = policy) else model.completion(),
    )

    override fun forget() = model.forget()

    override suspend fun selfTest() = model.selfTestInBackground()
}

private class LibrarySession(private val session: Session) : OpenSession, AutoCloseable by session {
    override val statistics get() = session.statistics

    override fun send(text: String, config: GenerationConfig) = session.send(text, config)

    override fun stop() = session.stop()

    override fun save(file: File) = session.save(file)

    override fun restore(file: File) = session.restore(file)
}
