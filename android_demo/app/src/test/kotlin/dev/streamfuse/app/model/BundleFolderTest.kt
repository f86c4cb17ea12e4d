package dev.streamfuse.app.model

import dev.streamfuse.StreamFuseException
import dev.streamfuse.app.R
import java.io.ByteArrayInputStream
import java.io.ByteArrayOutputStream
import java.io.File
import java.io.InputStream
import java.nio.file.Files
import java.util.zip.ZipEntry
import java.util.zip.ZipOutputStream
import kotlinx.coroutines.CancellationException
import kotlinx.coroutines.CoroutineScope
import kotlinx.coroutines.Dispatchers
import kotlinx.coroutines.Job
import kotlinx.coroutines.async
import kotlinx.coroutines.runBlocking
import org.junit.Assert.assertEquals
import org.junit.Assert.assertThrows
import org.junit.Assert.assertTrue
import org.junit.Rule
import org.junit.Test
import org.junit.rules.TemporaryFolder

/** Untrusted imports: nothing lands outside, nothing half-made stays, and what is wrong is said. */
class BundleFolderTest {
    @get:Rule val temporary = TemporaryFolder()
    private val root by lazy { File(temporary.root, "bundles") }
    private val bundles by lazy { BundleFolder(root, FakeEngine(), ImportLimits(files = 5, bytes = 10_000)) }

    private fun zip(vararg entries: Pair<String, ByteArray>): ByteArray = ByteArrayOutputStream().also { bytes ->
        ZipOutputStream(bytes).use { zip ->
            for ((name, content) in entries) {
                zip.putNextEntry(ZipEntry(name))
                zip.write(content)
            }
        }
    }.toByteArray()

    private fun import(name: String, content: ByteArray): String = runBlocking {
        bundles.import(ZipSource(name, content.size.toLong()) { ByteArrayInputStream(content) }) { }
    }

    private fun refused(content: ByteArray): Int {
        val error = assertThrows(AppException::class.java) { import("a.zip", content) }
        assertNothingLeft()
        return (error.sentence as Sentence.Words).id
    }

    private fun assertNothingLeft() {
        assertEquals(emptyList<Installed>(), bundles.list())
        assertEquals(emptyList<File>(), root.listFiles().orEmpty().toList())
        assertEquals("nothing beside it", listOf(root), temporary.root.listFiles()!!.toList())
    }

    private val manifest = "manifest.json" to "{}".toByteArray()

    @Test fun `a sound zip is listed under its name, the second one beside it`() {
        val content = zip(manifest, "model.mlpackage/weights.bin" to ByteArray(100))
        assertEquals("demo", import("demo.zip", content))
        assertEquals("demo 2", import("demo.zip", content))
        assertEquals(listOf(Installed("demo", 102), Installed("demo 2", 102)), bundles.list())
    }

    @Test fun `a zip of the folder is as good as one of its content`() {
        import("demo.zip", zip("demo/manifest.json" to ByteArray(2), "demo/model.pte" to ByteArray(9), "__MACOSX/demo/._x" to ByteArray(3)))
        assertEquals(setOf("manifest.json", "model.pte"), bundles.path("demo").list()!!.toSet())
    }

    @Test fun `paths that lead out of the folder are refused`() {
        for (path in listOf("../evil", "/etc/evil", "a/../../evil", "a\\..\\evil", "a//b", "./a", "a\u0000b", "x".repeat(256))) {
            val id = refused(zip(manifest, path to ByteArray(1)))
            assertTrue(path, id == R.string.error_path || id == R.string.error_zip)
        }
        assertEquals(R.string.error_path, refused(zip(manifest, "d/".repeat(10) + "deep" to ByteArray(1))))
    }

    @Test fun `limits hold for what is unpacked, whatever the zip says`() {
        assertEquals(R.string.error_large, refused(zip(manifest, "bomb" to ByteArray(10_001))))
        assertEquals(R.string.error_many_files, refused(zip(manifest, *Array(5) { "f$it" to ByteArray(0) })))
    }

    @Test fun `what is no bundle is refused`() {
        assertEquals(R.string.error_no_manifest, refused(zip("readme.txt" to ByteArray(1))))
        assertEquals(R.string.error_no_manifest, refused("this is no zip".toByteArray()))
        assertEquals(R.string.error_cut_short, refused(zip(manifest, "model.pte" to ByteArray(5000) { (it * it).toByte() }).copyOf(200)))
        val damaged = zip(manifest, "damaged" to ByteArray(1))
        val error = assertThrows(StreamFuseException::class.java) { import("a.zip", damaged) }
        assertEquals("model.pte is not the file that the manifest names.", error.message)
        assertNothingLeft()
    }

    @Test fun `untrusted names become plain ones`() {
        assertEquals("a_b", import("a/b.zip", zip(manifest)))
        assertEquals("bundle", import("...zip", zip(manifest)))
        assertEquals("模型", import("模型.zip", zip(manifest)))
    }

    @Test fun `a cancelled import leaves nothing`() = runBlocking {
        val endless = object : ImportSource() {
            override val name = "endless"
            override val totalBytes: Long? = null

            override fun forEachFile(take: (path: String, content: InputStream) -> Unit) =
                take("zeros", object : InputStream() {
                    override fun read() = 0

                    override fun read(into: ByteArray, offset: Int, length: Int) = 0
                })
        }
        val job = Job()
        val import = CoroutineScope(Dispatchers.IO + job).async { bundles.import(endless) { job.cancel() } }
        assertTrue(runCatching { import.await() }.exceptionOrNull() is CancellationException)
        while (import.isActive || root.listFiles()!!.isNotEmpty()) Thread.sleep(10)
        assertNothingLeft()
    }

    @Test fun `a link in a bundle is deleted, what it leads to is not`() = runBlocking {
        val precious = File(temporary.newFolder("elsewhere"), "precious").apply { writeText("still here") }
        root.mkdirs()
        Files.createSymbolicLink(File(root, "linked").toPath(), precious.parentFile!!.toPath())
        import("demo.zip", zip(manifest))
        Files.createSymbolicLink(File(bundles.path("demo"), "inner").toPath(), precious.parentFile!!.toPath())
        bundles.delete("demo")
        bundles.delete("linked")
        assertEquals(emptyList<Installed>(), bundles.list())
        assertEquals("still here", precious.readText())
    }

    @Test fun `what an ended process left is swept, and a deleted bundle is gone`() = runBlocking {
        File(root, ".unfinished123/half").mkdirs()
        bundles.list()
        assertTrue("no folder is swept by the way", File(root, ".unfinished123").exists())
        val content = zip(manifest)
        val slow = ZipSource("demo.zip", content.size.toLong()) {
            runBlocking { bundles.sweep() } // in the middle of an import
            ByteArrayInputStream(content)
        }
        assertEquals("demo", bundles.import(slow) { })
        assertEquals(listOf("demo"), root.list()!!.toList())
        bundles.delete("demo")
        assertNothingLeft()
    }
}
