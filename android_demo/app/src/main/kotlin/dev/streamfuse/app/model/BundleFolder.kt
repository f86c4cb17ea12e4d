package dev.streamfuse.app.model

import dev.streamfuse.app.R
import java.io.EOFException
import java.io.File
import java.io.InputStream
import java.nio.file.FileAlreadyExistsException
import java.nio.file.Files
import java.nio.file.StandardCopyOption
import java.nio.file.StandardOpenOption
import java.util.UUID
import kotlin.coroutines.coroutineContext
import kotlin.io.path.ExperimentalPathApi
import kotlin.io.path.deleteRecursively
import kotlinx.coroutines.CoroutineDispatcher
import kotlinx.coroutines.Dispatchers
import kotlinx.coroutines.Job
import kotlinx.coroutines.ensureActive
import kotlinx.coroutines.withContext

data class Installed(val name: String, val bytes: Long)

/** What an import may bring at most. The largest bundles that phones run have a few dozen files and a few gigabytes. */
data class ImportLimits(val files: Int = 1000, val bytes: Long = 16L shl 30, val depth: Int = 10)

enum class ImportStep { COPYING, CHECKING }

data class ImportProgress(val step: ImportStep, val doneBytes: Long, val totalBytes: Long?)

/**
 * The bundles in the app's own folder. One that is listed is whole: it took its name when it had been checked. Its
 * functions read the disk, those that suspend on [dispatcher].
 */
class BundleFolder(
    private val folder: File,
    private val engine: Engine,
    private val limits: ImportLimits = ImportLimits(),
    private val dispatcher: CoroutineDispatcher = Dispatchers.IO,
) {
    private val ours = "$UNFINISHED-${UUID.randomUUID()}-"

    /** Deletes what a process left that ended in the middle: maybe gigabytes. This one's own work may go on meanwhile. */
    suspend fun sweep() = withContext(dispatcher) {
        folder.listFiles { file -> file.name.startsWith(UNFINISHED) && !file.name.startsWith(ours) }
            ?.forEach { it.deleteTree() }
    }

    fun list(): List<Installed> = folder.listFiles { file -> file.isDirectory && !file.name.startsWith(".") }.orEmpty()
        .map { Installed(it.name, it.walk().filter(File::isFile).sumOf(File::length)) }
        .sortedBy { it.name }

    fun path(name: String) = File(folder, name)

    suspend fun delete(name: String) = withContext(dispatcher) {
        val doomed = File(folder, "$ours$name")
        // Renamed first: a bundle is there, or it is not.
        if (!path(name).renameTo(doomed) || !doomed.deleteTree()) {
            throw AppException(words(R.string.error_delete, name))
        }
    }

    /**
     * Copies, checks by the library, and lists a bundle; its name. Where it fails or is cancelled nothing is left.
     * AppException, IOException or StreamFuseException says why.
     */
    suspend fun import(source: ImportSource, report: (ImportProgress) -> Unit): String = withContext(dispatcher) {
        folder.mkdirs()
        val unfinished = Files.createTempDirectory(folder.toPath(), ours).toFile()
        try {
            val copy = Copy(unfinished, limits, coroutineContext[Job]!!) {
                report(ImportProgress(ImportStep.COPYING, source.doneBytes, source.totalBytes))
            }
            try {
                source.forEachFile(copy::take)
            } catch (_: EOFException) {
                throw AppException(words(R.string.error_cut_short, source.name))
            }
            report(ImportProgress(ImportStep.CHECKING, source.doneBytes, source.totalBytes))
            val root = rootIn(unfinished) ?: throw AppException(words(R.string.error_no_manifest, source.name))
            engine.open(root, threads = null, checkHashes = true).close()
            coroutineContext.ensureActive()
            val name = freeName(source.name)
            Files.move(root.toPath(), path(name).toPath(), StandardCopyOption.ATOMIC_MOVE)
            name
        } finally {
            unfinished.deleteTree()
        }
    }

    /** Zips are often made of the folder, not of its content. */
    private fun rootIn(copied: File): File? =
        (listOf(copied) + copied.listFiles(File::isDirectory).orEmpty()).firstOrNull { File(it, MANIFEST).isFile }

    private fun freeName(wanted: String): String {
        val plain = wanted.removeSuffix(".zip").replace(Regex("[^\\p{L}\\p{N}._ -]"), "_").trim(' ', '.').take(60)
        val base = plain.ifEmpty { "bundle" }
        return generateSequence(1) { it + 1 }
            .map { if (it == 1) base else "$base $it" }
            .first { !path(it).exists() }
    }

    private companion object {
        const val UNFINISHED = ".unfinished"
        const val MANIFEST = "manifest.json"
    }
}

/** Deletes what is in a folder, and links as links: what they lead to is not ours. False where something is left. */
@OptIn(ExperimentalPathApi::class)
private fun File.deleteTree(): Boolean = runCatching { toPath().deleteRecursively() }.isSuccess

/** Untrusted files into [target], within [limits] and nowhere else. */
private class Copy(
    private val target: File,
    private val limits: ImportLimits,
    private val job: Job,
    private val report: () -> Unit,
) {
    private val room = target.usableSpace - SPARE_BYTES
    private val buffer = ByteArray(1 shl 18)
    private var files = 0
    private var bytes = 0L

    fun take(path: String, content: InputStream) {
        if (++files > limits.files) throw AppException(words(R.string.error_many_files, limits.files))
        val file = fileOf(path)
        file.parentFile!!.mkdirs()
        val out = try {
            Files.newOutputStream(file.toPath(), StandardOpenOption.CREATE_NEW, StandardOpenOption.WRITE)
        } catch (_: FileAlreadyExistsException) {
            throw AppException(words(R.string.error_twice, path))
        }
        out.use {
            while (true) {
                job.ensureActive()
                val count = content.read(buffer)
                if (count < 0) return
                bytes += count
                if (bytes > limits.bytes) throw AppException(words(R.string.error_large, limits.bytes shr 20))
                if (bytes > room) throw AppException(words(R.string.error_no_room))
                it.write(buffer, 0, count)
                report()
            }
        }
    }

    private fun fileOf(path: String): File {
        val parts = path.split('/')
        val safe = parts.size <= limits.depth && parts.all { part ->
            part.isNotEmpty() && part != "." && part != ".." && part.toByteArray().size <= MAX_NAME_BYTES &&
                part.none { it == '\\' || it.isISOControl() }
        }
        if (!safe) throw AppException(words(R.string.error_path, path.take(100)))
        return parts.fold(target, ::File)
    }

    private companion object {
        const val SPARE_BYTES = 64L shl 20 // so that the device stays usable
        const val MAX_NAME_BYTES = 255
    }
}
