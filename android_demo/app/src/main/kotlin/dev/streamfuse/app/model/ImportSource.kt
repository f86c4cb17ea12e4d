package dev.streamfuse.app.model

import dev.streamfuse.app.R
import java.io.FilterInputStream
import java.io.InputStream
import java.util.zip.ZipException
import java.util.zip.ZipInputStream

/** Files that shall become a bundle: a folder or a zip that the user chose. */
abstract class ImportSource {
    /** What the user sees as its name. */
    abstract val name: String

    /** For the progress bar; null where nobody knows. */
    abstract val totalBytes: Long?

    /** Of [totalBytes], read so far. */
    @Volatile var doneBytes: Long = 0
        private set

    /** Calls [take] for each file with its path, parts separated by `/`. The stream is valid during the call. */
    abstract fun forEachFile(take: (path: String, content: InputStream) -> Unit)

    protected fun counted(stream: InputStream): InputStream = object : FilterInputStream(stream) {
        override fun read(): Int = super.read().also { if (it >= 0) doneBytes++ }

        override fun read(into: ByteArray, offset: Int, length: Int): Int =
            super.read(into, offset, length).also { if (it > 0) doneBytes += it }
    }
}

/** A zip that is read once, front to back, so that it needs no room of its own. */
class ZipSource(
    override val name: String,
    override val totalBytes: Long?,
    private val open: () -> InputStream,
) : ImportSource() {
    override fun forEachFile(take: (path: String, content: InputStream) -> Unit) {
        try {
            ZipInputStream(counted(open())).use { zip ->
                generateSequence { zip.nextEntry }
                    .filterNot { it.isDirectory || it.name.startsWith("__MACOSX/") }
                    .forEach { take(it.name, zip) }
            }
        } catch (error: ZipException) { // Android's own also refuses paths that lead out of the folder
            throw AppException(words(R.string.error_zip, error.message.orEmpty()))
        } catch (error: IllegalArgumentException) { // a name that is not UTF-8
            throw AppException(words(R.string.error_zip, error.message.orEmpty()))
        }
    }
}
