package dev.streamfuse.app.model

import dev.streamfuse.GenerationConfig
import dev.streamfuse.Message
import dev.streamfuse.Model
import dev.streamfuse.Options
import dev.streamfuse.Piece
import dev.streamfuse.Session
import dev.streamfuse.Statistics
import dev.streamfuse.StreamFuse
import java.io.File
import kotlinx.coroutines.flow.Flow

/** The app's interface to the library: what its models ask for. They are tested over a fake without native code. */
interface Engine {
    /** As [StreamFuse.backends]. */
    val backends: Map<String, String?>

    /** @param checkHashes reads the whole bundle once; for one that has just come in. */
    suspend fun open(folder: File, threads: Int?, checkHashes: Boolean = false): OpenModel
}

interface OpenModel : AutoCloseable {
    val defaults: GenerationConfig

    /** Without a chat template the model only continues text, and has no system prompt. */
    val canChat: Boolean
    val threads: Int

    fun session(system: String? = null, history: List<Message> = emptyList()): OpenSession
}

/** As [Session]. */
interface OpenSession : AutoCloseable {
    val statistics: Statistics?

    fun send(text: String, config: GenerationConfig): Flow<Piece>

    fun stop()

    fun reset()

    fun save(file: File)

    fun restore(file: File)
}

/** The library itself. [cacheDir] keeps what passes cost on this device. */
class LibraryEngine(private val cacheDir: File) : Engine {
    override val backends get() = StreamFuse.backends

    override suspend fun open(folder: File, threads: Int?, checkHashes: Boolean): OpenModel =
        LibraryModel(StreamFuse.load(folder, Options(threads, cacheDir, checkHashes = checkHashes)))
}

private class LibraryModel(private val model: Model) : OpenModel, AutoCloseable by model {
    override val defaults get() = model.defaults
    override val canChat get() = model.canChat
    override val threads get() = model.threads

    override fun session(system: String?, history: List<Message>): OpenSession =
        LibrarySession(if (model.canChat) model.chat(system, history) else model.completion())
}

private class LibrarySession(private val session: Session) : OpenSession, AutoCloseable by session {
    override val statistics get() = session.statistics

    override fun send(text: String, config: GenerationConfig) = session.send(text, config)

    override fun stop() = session.stop()

    override fun reset() = session.reset()

    override fun save(file: File) = session.save(file)

    override fun restore(file: File) = session.restore(file)
}
