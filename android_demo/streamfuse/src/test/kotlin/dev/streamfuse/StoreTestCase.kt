package dev.streamfuse

import dev.streamfuse.testing.Publisher
import java.io.ByteArrayOutputStream
import java.io.File
import java.nio.file.Path
import java.util.zip.ZipEntry
import java.util.zip.ZipOutputStream
import kotlinx.coroutines.flow.toList
import kotlinx.coroutines.runBlocking
import kotlinx.coroutines.withTimeout
import org.junit.jupiter.api.AfterEach
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertFalse
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.io.TempDir

/** A store, and a publisher on this machine. */
abstract class StoreTestCase {
    @TempDir lateinit var temporary: Path
    protected val root get() = temporary.resolve("bundles").toFile()
    protected val publisher = Publisher()
    protected val checked = mutableListOf<File>()
    protected val store by lazy { store() }

    /** A file `damaged` makes a folder no bundle. */
    protected fun store(limits: BundleLimits = BundleLimits()) = BundleStore(root, limits = limits) { folder ->
        checked += folder
        if (File(folder, "damaged").exists()) throw StreamFuseException(ErrorCode.BAD_FILE, "model.pte is damaged")
    }.apply { http = Http(timeoutMs = 5_000, retryMs = listOf(5, 5)) }

    @AfterEach fun stop() = publisher.close()

    protected fun bytes(count: Int) = ByteArray(count) { (it * 31 + it / 251).toByte() }

    protected val demo = Publisher.bundle(
        mapOf(
            "model.pte" to bytes(300_000), "empty" to ByteArray(0),
            "model.mlpackage/Data/weights #1.bin" to bytes(1_000),
        ),
    )

    /** All bytes of [demo]. */
    protected val demoBytes = demo.values.sumOf { it.size }.toLong()

    protected fun entries(): List<CatalogEntry> = runBlocking { store.catalog(publisher.address).entries }

    protected fun entry(): CatalogEntry = entries().single()

    protected fun download(entry: CatalogEntry, from: BundleStore = store): List<BundleProgress> =
        runBlocking { withTimeout(20_000) { from.download(entry).toList() } }

    protected fun refused(code: ErrorCode, named: String, body: () -> Unit) {
        val error = failureOf<StreamFuseException>(body)
        assertEquals(code, error.code, error.message)
        assertTrue(named in error.message!!, error.message)
        assertFalse('\n' in error.message!!, error.message)
    }

    protected fun list() = runBlocking { store.list() }

    protected fun left() = root.list().orEmpty().toList()

    protected fun requested(path: String) = publisher.requests.filter { it.first == path }.map { it.second }


    /** Paths that must not be followed, and their beginnings. */
    protected val hostilePaths = listOf("../evil", "/etc/evil", "a/../../evil", "a\\..\\evil", "a//b", "./a", "a\u0000b", "x".repeat(256))

    protected fun zip(vararg entries: Pair<String, ByteArray>): ByteArray = ByteArrayOutputStream().also { bytes ->
        ZipOutputStream(bytes).use { zip ->
            for ((name, content) in entries) {
                zip.putNextEntry(ZipEntry(name))
                zip.write(content)
            }
        }
    }.toByteArray()
}
