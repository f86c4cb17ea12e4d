package dev.streamfuse.app.model

import dev.streamfuse.Role
import java.io.File
import java.io.FileOutputStream
import java.io.IOException
import java.nio.file.Files
import java.nio.file.StandardCopyOption
import java.util.UUID
import kotlinx.coroutines.flow.MutableStateFlow
import kotlinx.coroutines.flow.StateFlow
import kotlinx.coroutines.flow.asStateFlow
import kotlinx.coroutines.flow.update
import kotlinx.serialization.SerializationException
import kotlinx.serialization.Serializable
import kotlinx.serialization.encodeToString
import kotlinx.serialization.json.Json

/**
 * A chat on disk.
 *
 * @property title the user's own; null: the first question is the title.
 * @property cache the name of the library's file beside the record, which holds the model's own memory of exactly these
 *   turns. Null: there is none, and the model reads the turns again.
 * @property changedMs when its last answer ended, in milliseconds since 1970.
 */
@Serializable
data class ChatRecord(
    val bundle: String,
    val system: String?,
    val turns: List<Turn>,
    val unsent: String? = null,
    val title: String? = null,
    val cache: String? = null,
    val changedMs: Long = 0,
)

/** A saved chat as the list shows it and as it is searched. */
data class ChatEntry(val id: String, val bundle: String, val title: String, val changedMs: Long, val text: String) {
    constructor(id: String, record: ChatRecord) : this(
        id,
        record.bundle,
        record.title ?: titleOf(record),
        record.changedMs,
        record.turns.joinToString("\n") { it.text },
    )

    private companion object {
        const val TITLE_LENGTH = 60

        /** The first question on one line, cut at a word. */
        fun titleOf(record: ChatRecord): String {
            val question = record.turns.firstOrNull { it.role == Role.USER }?.text ?: record.unsent.orEmpty()
            val line = question.trim().replace(Regex("\\s+"), " ")
            if (line.length <= TITLE_LENGTH) return line
            val cut = line.take(TITLE_LENGTH)
            return cut.substringBeforeLast(' ', cut) + " …"
        }
    }
}

/**
 * All chats on disk, each in a folder of its own. Making it reads them; any thread may use it. The process may end at any
 * moment: a record is replaced in one step and names its cache file, so that the two never disagree.
 *
 * @property now milliseconds since 1970.
 */
class SavedChats(private val folder: File, private val now: () -> Long = System::currentTimeMillis) {
    private val current = MutableStateFlow(readAll())

    /** The latest first. */
    val entries: StateFlow<List<ChatEntry>> = current.asStateFlow()

    fun newId() = UUID.randomUUID().toString()

    /** The chat of a bundle that was used last; null: it has none. */
    fun latest(bundle: String): String? = entries.value.firstOrNull { it.bundle == bundle }?.id

    /** Null where it is not there or cannot be read. */
    @Synchronized
    fun read(id: String): ChatRecord? = try {
        json.decodeFromString<ChatRecord>(recordOf(id).readText())
    } catch (_: IOException) {
        null
    } catch (_: SerializationException) {
        null
    }

    fun cacheOf(id: String, record: ChatRecord): File? = record.cache?.let { File(folder, "$id/$it") }

    /** The turns alone: cheap, after each of them. The title stays what it was. */
    @Synchronized
    fun write(id: String, record: ChatRecord) = put(id, record.copy(title = read(id)?.title, changedMs = later()))

    /** The turns, and the model's memory of them by [saveCache]; the latest [MOST_CACHES] chats keep theirs. */
    @Synchronized
    fun write(id: String, record: ChatRecord, saveCache: (File) -> Unit) {
        val before = read(id)?.cache
        val name = CACHES.first { it != before }
        saveCache(File(File(folder, id).apply { mkdirs() }, name))
        write(id, record.copy(cache = name))
        for (old in entries.value.filter { hasCache(it.id) }.drop(MOST_CACHES)) {
            read(old.id)?.let { put(old.id, it.copy(cache = null)) }
        }
    }

    /** An empty title is that of the first question again. */
    @Synchronized
    fun rename(id: String, title: String) {
        read(id)?.let { put(id, it.copy(title = title.trim().ifEmpty { null })) }
    }

    /** Forgets the unsent text. Keeps all else, including the list position and the cache. */
    @Synchronized
    fun takeUnsent(id: String) {
        read(id)?.takeIf { it.unsent != null }?.let { put(id, it.copy(unsent = null)) }
    }

    /** Takes it out of the list; [restore] brings it back until [sweep]. */
    @Synchronized
    fun delete(id: String) {
        current.update { all -> all.filter { it.id != id } }
        if (!File(folder, id).renameTo(File(folder, DELETED + id))) File(folder, id).deleteRecursively()
    }

    @Synchronized
    fun restore(id: String) {
        if (!File(folder, DELETED + id).renameTo(File(folder, id))) return
        read(id)?.let { show(ChatEntry(id, it)) }
    }

    /** Frees the room of deleted chats. */
    @Synchronized
    fun sweep() {
        folder.listFiles { file -> file.name.startsWith(DELETED) }?.forEach { it.deleteRecursively() }
    }

    /** Deletes the chats of a bundle for good: nothing can open them again. */
    @Synchronized
    fun clear(bundle: String) {
        entries.value.filter { it.bundle == bundle }.forEach { delete(it.id) }
        sweep()
    }

    private fun put(id: String, record: ChatRecord) {
        val file = recordOf(id)
        val here = file.parentFile!!.apply { mkdirs() }
        val next = File(here, "chat.json.new")
        FileOutputStream(next).use {
            it.write(json.encodeToString(record).toByteArray())
            it.fd.sync() // else a power failure after the move could leave an empty record
        }
        Files.move(next.toPath(), file.toPath(), StandardCopyOption.ATOMIC_MOVE, StandardCopyOption.REPLACE_EXISTING)
        here.listFiles { other -> other != file && other.name != record.cache }?.forEach { it.delete() }
        show(ChatEntry(id, record))
    }

    /** Now, or a moment later where the clock stands or goes back: the chat used last is the latest. */
    private fun later() = maxOf(now(), (entries.value.maxOfOrNull { it.changedMs } ?: 0) + 1)

    private fun show(entry: ChatEntry) = current.update { all -> sorted(all.filter { it.id != entry.id } + entry) }

    private fun readAll(): List<ChatEntry> = sorted(
        folder.listFiles { file -> file.isDirectory && !file.name.startsWith(".") }.orEmpty()
            .mapNotNull { file -> read(file.name)?.let { ChatEntry(file.name, it) } },
    )

    /** Whether a file of a cache is there, whatever the record says: there are too many records to read each of them. */
    private fun hasCache(id: String) = CACHES.any { File(folder, "$id/$it").exists() }

    private fun recordOf(id: String) = File(folder, "$id/chat.json")

    companion object {
        /** How many chats keep their caches, megabytes each; the turns of others are read again. */
        const val MOST_CACHES = 5

        private val CACHES = listOf("a.cache", "b.cache") // one is written while the record names the other
        private const val DELETED = ".deleted-"
        private val json = Json { ignoreUnknownKeys = true }

        private fun sorted(entries: List<ChatEntry>) = entries.sortedWith(compareByDescending(ChatEntry::changedMs).thenBy(ChatEntry::id))
    }
}
