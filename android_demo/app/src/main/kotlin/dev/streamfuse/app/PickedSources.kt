package dev.streamfuse.app

import android.content.ContentResolver
import android.content.Intent
import android.net.Uri
import android.provider.DocumentsContract
import android.provider.DocumentsContract.Document
import android.provider.OpenableColumns
import dev.streamfuse.BundleSource
import dev.streamfuse.ZipSource
import java.io.FileNotFoundException
import java.io.InputStream
import kotlinx.coroutines.Job

/** A folder that the user picked: a tree of the Storage Access Framework. */
class TreeSource(private val resolver: ContentResolver, private val tree: Uri) : BundleSource() {
    private class Entry(val path: String, val id: String, val bytes: Long?)

    private val rootId = DocumentsContract.getTreeDocumentId(tree)!!
    override val name: String = rootId.substringAfterLast('/').substringAfterLast(':').ifEmpty { "bundle" }

    @Volatile override var totalBytes: Long? = null
        private set

    override fun forEachFile(take: (path: String, content: InputStream) -> Unit) {
        val files = mutableListOf<Entry>()
        collect(rootId, "", files)
        val sizes = files.mapNotNull { it.bytes }
        totalBytes = if (sizes.size == files.size) sizes.sum() else null
        for (file in files) {
            val uri = DocumentsContract.buildDocumentUriUsingTree(tree, file.id)!!
            counted(resolver.read(uri)).use { take(file.path, it) }
        }
    }

    private fun collect(folder: String, path: String, files: MutableList<Entry>) {
        val children = DocumentsContract.buildChildDocumentsUriUsingTree(tree, folder)!!
        val columns = arrayOf(Document.COLUMN_DOCUMENT_ID, Document.COLUMN_DISPLAY_NAME, Document.COLUMN_MIME_TYPE, Document.COLUMN_SIZE)
        val folders = mutableListOf<Pair<String, String>>()
        resolver.query(children, columns, null, null, null)?.use { rows ->
            while (rows.moveToNext()) {
                val here = path + rows.getString(1)
                if (rows.getString(2) == Document.MIME_TYPE_DIR) {
                    folders += rows.getString(0) to "$here/"
                } else {
                    files += Entry(here, rows.getString(0), if (rows.isNull(3)) null else rows.getLong(3))
                }
            }
        }
        for ((id, below) in folders) collect(id, below, files)
    }
}

/** A zip that the user picked. */
fun zipSource(resolver: ContentResolver, uri: Uri): ZipSource {
    val columns = arrayOf(OpenableColumns.DISPLAY_NAME, OpenableColumns.SIZE)
    val (name, bytes) = resolver.query(uri, columns, null, null, null)?.use { rows ->
        if (rows.moveToFirst()) rows.getString(0) to (if (rows.isNull(1)) null else rows.getLong(1)) else null
    } ?: ((uri.lastPathSegment ?: "bundle") to null)
    return ZipSource(name ?: "bundle", bytes) { resolver.read(uri) }
}

/** Keeps the right to read [uri] until [import] ends. The picker's own grant ends with the screen that opened it. */
fun ContentResolver.keepGrant(uri: Uri, import: Job) {
    try {
        takePersistableUriPermission(uri, Intent.FLAG_GRANT_READ_URI_PERMISSION)
    } catch (_: SecurityException) {
        return // the provider has no persistable grants
    }
    import.invokeOnCompletion { release(uri) }
}

/** Gives back what [keepGrant] kept for an import that ended with its process: an app can keep only so many grants. */
fun ContentResolver.releaseGrants() = persistedUriPermissions.map { it.uri }.forEach(::release)

private fun ContentResolver.release(uri: Uri) = try {
    releasePersistableUriPermission(uri, Intent.FLAG_GRANT_READ_URI_PERMISSION)
} catch (_: SecurityException) {
    // The grant was withdrawn, or the provider was uninstalled.
}

private fun ContentResolver.read(uri: Uri): InputStream =
    openInputStream(uri) ?: throw FileNotFoundException(uri.lastPathSegment ?: uri.toString())
