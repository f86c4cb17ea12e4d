package dev.streamfuse

import java.io.FilterInputStream
import java.io.InputStream
import java.util.zip.ZipException
import java.util.zip.ZipInputStream

/** Files that [BundleStore.import] copies: for example a folder or a zip that the user picked. */
public abstract class BundleSource {
    /** The name that the bundle gets in the store, without `.zip` and what a name cannot have. */
    public abstract val name: String

    /** The number of bytes to read; null if it is not known. */
    public abstract val totalBytes: Long?

    /** How many of [totalBytes] have been read. */
    @Volatile public var doneBytes: Long = 0
        private set

    /**
     * Calls [take] for each file with its path, parts separated by `/`. The stream is valid during the call. Runs on a
     * thread that may block.
     */
    public abstract fun forEachFile(take: (path: String, content: InputStream) -> Unit)

    /** A stream that counts in [doneBytes] what is read from it. */
    protected fun counted(stream: InputStream): InputStream = object : FilterInputStream(stream) {
        override fun read(): Int = super.read().also { if (it >= 0) doneBytes++ }

        override fun read(into: ByteArray, offset: Int, length: Int): Int =
            super.read(into, offset, length).also { if (it > 0) doneBytes += it }
    }
}

/** A zip of a bundle, or of its folder. It is read once, front to back, so it needs no room of its own. */
public class ZipSource(
    override val name: String,
    override val totalBytes: Long?,
    private val open: () -> InputStream,
) : BundleSource() {
    override fun forEachFile(take: (path: String, content: InputStream) -> Unit) {
        try {
            ZipInputStream(counted(open())).use { zip ->
                generateSequence { zip.nextEntry }
                    .filterNot { it.isDirectory || it.name.startsWith("__MACOSX/") }
                    .forEach { take(it.name, zip) }
            }
        } catch (error: ZipException) { // Android's own also refuses paths that lead out of the folder
            throw damaged(error)
        } catch (error: IllegalArgumentException) { // a name that is not UTF-8
            throw damaged(error)
        }
    }

    private fun damaged(error: Exception) =
        StreamFuseException(ErrorCode.BAD_FILE, "$name is a damaged zip (${error.message}); copy it here again")
}
