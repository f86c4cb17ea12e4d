package dev.streamfuse

import java.io.Closeable
import java.io.EOFException
import java.io.File
import java.io.IOException
import java.io.InputStream
import java.io.RandomAccessFile
import java.nio.ByteBuffer
import java.nio.channels.FileChannel
import java.nio.channels.OverlappingFileLockException
import java.nio.file.FileAlreadyExistsException
import java.nio.file.StandardOpenOption
import java.util.concurrent.ConcurrentHashMap
import kotlin.io.path.ExperimentalPathApi
import kotlin.io.path.deleteRecursively

internal const val MANIFEST = "manifest.json"

/** The files that the manifest does not list: itself and its signature. */
internal val DESCRIBING = setOf(MANIFEST, "manifest.sig")

/** Whether a path of untrusted origin leads to a file below its folder, on every file system. */
internal fun isPlainPath(path: String, depth: Int): Boolean {
    val parts = path.split('/')
    return parts.size <= depth && parts.all { part ->
        part.isNotEmpty() && part != "." && part != ".." && part.encodeToByteArray().size <= MAX_NAME_BYTES &&
            part.none { it == '\\' || it == ':' || it.isISOControl() }
    }
}

private const val MAX_NAME_BYTES = 255

/** An I/O error of the disk, to tell it from one of the network. */
internal class DiskException(cause: IOException) : IOException(cause.message, cause)

/** Runs disk I/O. Throws [ErrorCode.NO_SPACE] if the disk is full, else [DiskException] for an IOException. */
internal inline fun <T> onDisk(work: () -> T): T = try {
    work()
} catch (error: IOException) {
    if ("No space left" in error.message.orEmpty() || "ENOSPC" in error.message.orEmpty()) throw noSpace(null, null)
    throw DiskException(error)
}

internal fun noSpace(needed: Long?, free: Long?): StreamFuseException {
    val known = needed != null && free != null
    val numbers = if (known) ": it needs ${megabytes(needed)}, and ${megabytes(free)} are free" else ""
    val sentence = "this device has too little free space for the bundle$numbers; make room and try again"
    return StreamFuseException(ErrorCode.NO_SPACE, sentence)
}

private fun megabytes(bytes: Long) = "${maxOf(0, bytes) / 1_000_000} MB"

/** Deletes a folder and what is in it, and links as links: what they lead to stays. False if something is left. */
@OptIn(ExperimentalPathApi::class)
internal fun File.deleteTree(): Boolean = runCatching { toPath().deleteRecursively() }.isSuccess

/** Waits until the names in a folder are on the disk, where the file system can tell. */
internal fun File.flushNames() {
    runCatching { FileChannel.open(toPath(), StandardOpenOption.READ).use { it.force(true) } }
}

/** [flushNames] of a folder and all folders below it. */
internal fun File.flushAllNames(): Unit = walkBottomUp().filter(File::isDirectory).forEach(File::flushNames)

/** A folder that one store works in, in this process and others. */
internal class Claim private constructor(val folder: File, private val file: RandomAccessFile) : Closeable {
    override fun close() {
        file.close() // and the lock
        held -= folder.path
    }

    companion object {
        /** The file in the folder that is locked; its time is that of the last claim. */
        const val LOCK = "lock"
        private val held: MutableSet<String> = ConcurrentHashMap.newKeySet()

        /** Null if it is claimed already. The folder is created if it is missing. */
        fun of(folder: File): Claim? {
            val canonical = folder.canonicalFile
            if (!held.add(canonical.path)) return null
            val file = try {
                canonical.mkdirs()
                RandomAccessFile(File(canonical, LOCK), "rw")
            } catch (error: IOException) {
                held -= canonical.path
                throw error
            }
            val free = try {
                file.channel.tryLock() != null
            } catch (_: OverlappingFileLockException) {
                false
            } catch (_: IOException) { // a file system without locks
                true
            }
            if (free) {
                File(canonical, LOCK).setLastModified(System.currentTimeMillis())
                return Claim(canonical, file)
            }
            file.close()
            held -= canonical.path
            return null
        }
    }
}

/** Copies untrusted files into [target], within [limits] and nowhere else. */
internal class Copy(
    private val target: File,
    private val limits: BundleLimits,
    private val freeBytes: Long,
    private val beforeBlock: () -> Unit,
) {
    private val buffer = ByteArray(1 shl 18)
    private var files = 0
    private var bytes = 0L

    fun take(path: String, content: InputStream) {
        if (++files > limits.files) throw refused("more than ${limits.files} files are no bundle")
        if (!isPlainPath(path, limits.depth)) throw refused("the name \"${path.take(100)}\" is not allowed in a bundle")
        val file = File(target, path)
        val out = try {
            onDisk {
                file.parentFile!!.mkdirs()
                FileChannel.open(file.toPath(), StandardOpenOption.CREATE_NEW, StandardOpenOption.WRITE)
            }
        } catch (error: DiskException) {
            val isThere = error.cause is FileAlreadyExistsException
            throw if (isThere) refused("the file \"${path.take(100)}\" is in it twice") else error
        }
        out.use {
            while (true) {
                beforeBlock()
                val count = content.read(buffer)
                if (count < 0) break
                bytes += count
                if (bytes > limits.bytes) throw refused("the bundle exceeds the limit of ${limits.bytes shr 20} MiB")
                if (bytes > freeBytes) throw noSpace(null, null)
                val block = ByteBuffer.wrap(buffer, 0, count)
                onDisk { while (block.hasRemaining()) out.write(block) }
            }
            onDisk { out.force(true) }
        }
    }

    private fun refused(sentence: String) = StreamFuseException(ErrorCode.BAD_FILE, sentence)

    companion object {
        /** Copies all files of [source]. */
        fun all(source: BundleSource, copy: Copy): Unit = try {
            source.forEachFile(copy::take)
        } catch (_: EOFException) {
            throw StreamFuseException(ErrorCode.BAD_FILE, "${source.name} is cut short; copy it to this device again")
        }
    }
}
