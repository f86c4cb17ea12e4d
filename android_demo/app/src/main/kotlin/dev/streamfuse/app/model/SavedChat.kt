package dev.streamfuse.app.model

import java.io.File
import java.io.FileOutputStream
import java.io.IOException
import java.nio.file.Files
import java.nio.file.StandardCopyOption
import kotlinx.serialization.SerializationException
import kotlinx.serialization.Serializable
import kotlinx.serialization.encodeToString
import kotlinx.serialization.json.Json

/**
 * The chat on disk. [cache] names the library's file beside it, which holds the model's own memory of exactly these
 * turns; null: there is none, and the model reads the turns again.
 */
@Serializable
data class ChatRecord(
    val bundle: String,
    val system: String?,
    val turns: List<Turn>,
    val unsent: String? = null,
    val cache: String? = null,
)

/** The chats on disk, one for each bundle. */
class SavedChats(private val folder: File) {
    fun of(bundle: String) = SavedChat(File(folder, bundle))
}

/**
 * Keeps one chat in a folder. The process may end at any moment: the record is replaced in one step and names its cache
 * file, so that the two never disagree.
 */
class SavedChat(private val folder: File) {
    private val recordFile = File(folder, "chat.json")

    /** The last chat; null where there is none that can be read. */
    fun read(): ChatRecord? = try {
        json.decodeFromString<ChatRecord>(recordFile.readText())
    } catch (_: IOException) {
        null
    } catch (_: SerializationException) {
        null
    }

    fun cacheOf(record: ChatRecord): File? = record.cache?.let { File(folder, it) }

    /** The turns alone: cheap, after each of them. */
    fun write(record: ChatRecord) {
        folder.mkdirs()
        val next = File(folder, "chat.json.new")
        FileOutputStream(next).use {
            it.write(json.encodeToString(record).toByteArray())
            it.fd.sync() // else a power failure after the move could leave an empty record
        }
        Files.move(next.toPath(), recordFile.toPath(), StandardCopyOption.ATOMIC_MOVE, StandardCopyOption.REPLACE_EXISTING)
        folder.listFiles { file -> file != recordFile && file.name != record.cache }?.forEach { it.delete() }
    }

    /** The turns, and the model's memory of them by [saveCache]. */
    fun write(record: ChatRecord, saveCache: (File) -> Unit) {
        folder.mkdirs()
        val name = if (read()?.cache == "a.cache") "b.cache" else "a.cache"
        saveCache(File(folder, name))
        write(record.copy(cache = name))
    }

    fun clear() {
        folder.deleteRecursively()
    }

    private companion object {
        val json = Json { ignoreUnknownKeys = true }
    }
}
