package dev.streamfuse.app.model

import java.io.File

/** A chat that the model has open. Its functions wait for the model or the disk; one thread at a time uses it. */
class OpenChat private constructor(
    val id: String,
    private val bundle: String,
    private val system: String?,
    private val model: OpenModel,
    private val saved: SavedChats,
    session: OpenSession,
) : AutoCloseable {
    @Volatile var session: OpenSession = session
        private set

    /** Whether the model's memory of the turns is newer than the file. */
    var isUnsaved = false

    /** Goes back to an earlier state of the conversation: [turns], which the model reads again. */
    fun rewind(turns: List<Turn>) {
        session.close()
        session = model.session(system, turns.map { it.message() })
        isUnsaved = true
    }

    /** Writes the turns alone. */
    fun keep(turns: List<Turn>, unsent: String?) = saved.write(id, ChatRecord(bundle, system, turns, unsent))

    /** Writes the turns and the model's memory of them. */
    fun save(turns: List<Turn>, unsent: String?) {
        saved.write(id, ChatRecord(bundle, system, turns, unsent), session::save)
        isUnsaved = false
    }

    override fun close() = session.close()

    companion object {
        fun begin(model: OpenModel, saved: SavedChats, bundle: String, systemPrompt: String): OpenChat {
            val system = systemPrompt.ifBlank { null }
            return OpenChat(saved.newId(), bundle, system, model, saved, model.session(system))
        }

        fun open(model: OpenModel, saved: SavedChats, id: String, record: ChatRecord): OpenChat =
            OpenChat(id, record.bundle, record.system, model, saved, sessionOf(model, record, saved.cacheOf(id, record)))

        private fun sessionOf(model: OpenModel, record: ChatRecord, cache: File?): OpenSession {
            if (cache != null) {
                val session = model.session(record.system)
                // A cache that cannot be read, of an older version or a full disk, is no loss: the turns are read again.
                if (runCatching { session.restore(cache) }.isSuccess) return session
                session.close()
            }
            return model.session(record.system, record.turns.map { it.message() })
        }
    }
}
