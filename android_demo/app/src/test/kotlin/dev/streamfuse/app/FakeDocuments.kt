package dev.streamfuse.app

import android.content.ContentProvider
import android.content.ContentValues
import android.database.Cursor
import android.database.MatrixCursor
import android.net.Uri
import android.os.ParcelFileDescriptor
import android.provider.DocumentsContract
import android.provider.DocumentsContract.Document
import java.io.File

/** The files of [root] as the system's file picker offers them; a document's id is its path. */
class FakeDocuments : ContentProvider() {
    override fun onCreate() = true

    override fun query(uri: Uri, columns: Array<String>?, selection: String?, arguments: Array<String>?, order: String?): Cursor {
        val rows = MatrixCursor(columns)
        val file = File(root, DocumentsContract.getDocumentId(uri))
        val files = if (uri.pathSegments.last() == "children") file.listFiles()!!.toList() else listOf(file)
        for (each in files) {
            rows.addRow(
                columns!!.map { column ->
                    when (column) {
                        Document.COLUMN_DOCUMENT_ID -> each.relativeTo(root).path
                        Document.COLUMN_DISPLAY_NAME -> each.name
                        Document.COLUMN_SIZE -> each.length().takeIf { each.name != sizeless }
                        Document.COLUMN_MIME_TYPE -> if (each.isDirectory) Document.MIME_TYPE_DIR else "application/octet-stream"
                        else -> null
                    }
                },
            )
        }
        return rows
    }

    override fun openFile(uri: Uri, mode: String): ParcelFileDescriptor {
        while (slow && File(root, DocumentsContract.getDocumentId(uri)).name == "model.pte") Thread.sleep(10)
        return ParcelFileDescriptor.open(File(root, DocumentsContract.getDocumentId(uri)), ParcelFileDescriptor.MODE_READ_ONLY)
    }

    override fun getType(uri: Uri) = "application/octet-stream"

    override fun insert(uri: Uri, values: ContentValues?) = null

    override fun delete(uri: Uri, selection: String?, arguments: Array<String>?) = 0

    override fun update(uri: Uri, values: ContentValues?, selection: String?, arguments: Array<String>?) = 0

    companion object {
        const val AUTHORITY = "dev.streamfuse.test.documents"
        lateinit var root: File

        /** The file whose size is not told. */
        @Volatile var sizeless: String? = null

        /** Whether the largest file hesitates. */
        @Volatile var slow = false
    }
}
