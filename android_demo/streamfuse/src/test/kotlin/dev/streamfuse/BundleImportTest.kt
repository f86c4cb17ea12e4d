package dev.streamfuse

import java.io.ByteArrayInputStream
import java.io.File
import java.io.InputStream
import java.nio.file.Files
import kotlinx.coroutines.flow.first
import kotlinx.coroutines.flow.toList
import kotlinx.coroutines.runBlocking
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.Test

/** Untrusted imports: nothing is written outside the store, a failed import leaves nothing, and its error has the cause. */
class BundleImportTest : StoreTestCase() {
    private val small by lazy { store(BundleLimits(files = 5, bytes = 10_000)) }

    private fun import(name: String, content: ByteArray): String = runBlocking {
        val steps = small.import { ZipSource(name, content.size.toLong()) { ByteArrayInputStream(content) } }.toList()
        (steps.last() as BundleProgress.Installed).bundle.name
    }

    private fun refusedImport(content: ByteArray, vararg named: String) {
        val error = failureOf<StreamFuseException> { import("a.zip", content) }
        assertTrue(named.any { it in error.message!! }, error.message)
        assertEquals(emptyList<String>(), left())
        assertEquals(listOf("bundles"), temporary.toFile().list()!!.toList(), "nothing beside it")
    }

    private val manifest = "manifest.json" to "{}".toByteArray()

    @Test
    fun `a sound zip is listed under its name, the second one beside it`() {
        val content = zip(manifest, "model.mlpackage/weights.bin" to ByteArray(100))
        assertEquals("demo", import("demo.zip", content))
        assertEquals("demo 2", import("demo.zip", content))
        assertEquals(listOf("demo" to 102L, "demo 2" to 102L), list().map { it.name to it.bytes })
    }

    @Test
    fun `a zip of the folder is as good as one of its content`() {
        val mac = "__MACOSX/demo/._x" to ByteArray(3)
        import("demo.zip", zip("demo/manifest.json" to ByteArray(2), "demo/model.pte" to ByteArray(9), mac))
        assertEquals(setOf("manifest.json", "model.pte"), store.folder("demo").list()!!.toSet())
    }

    @Test
    fun `untrusted zips are refused - paths that lead out, limits, what is no bundle`() {
        for (path in hostilePaths) {
            refusedImport(zip(manifest, path to ByteArray(1)), "is not allowed in a bundle", "is a damaged zip")
        }
        refusedImport(zip(manifest, "d/".repeat(10) + "deep" to ByteArray(1)), "is not allowed in a bundle")
        refusedImport(zip(manifest, "bomb" to ByteArray(10_001)), "exceeds the limit")
        refusedImport(zip(manifest, *Array(5) { "f$it" to ByteArray(0) }), "more than 5 files")
        refusedImport(zip("readme.txt" to ByteArray(1)), "manifest.json is missing")
        refusedImport("this is no zip".toByteArray(), "manifest.json is missing")
        refusedImport(zip(manifest, "model.pte" to ByteArray(5000) { (it * it).toByte() }).copyOf(200), "is cut short")
        refusedImport(zip(manifest, "damaged" to ByteArray(1)), "model.pte is damaged")
        small.usableBytes = { 64L shl 20 }
        refusedImport(zip(manifest), "too little free space")
    }

    @Test
    fun `untrusted names become plain ones`() {
        assertEquals("a_b", import("a/b.zip", zip(manifest)))
        assertEquals("bundle", import("...zip", zip(manifest)))
        assertEquals("模型", import("模型.zip", zip(manifest)))
    }

    @Test
    fun `a cancelled import leaves nothing`(): Unit = runBlocking {
        val endless = object : BundleSource() {
            override val name = "endless"
            override val totalBytes: Long? = null

            override fun forEachFile(take: (path: String, content: InputStream) -> Unit) {
                val zeros = object : InputStream() {
                    override fun read() = 0

                    override fun read(into: ByteArray, offset: Int, length: Int) = 1
                }
                take("zeros", counted(zeros))
            }
        }
        store.import { endless }.first { it is BundleProgress.Receiving && it.doneBytes > 0 }
        assertEquals(emptyList<String>(), left())
    }

    @Test
    fun `a link in a bundle is deleted, what it leads to is not`(): Unit = runBlocking {
        val elsewhere = temporary.resolve("elsewhere").toFile().apply { mkdirs() }
        val precious = File(elsewhere, "precious").apply { writeText("still here") }
        root.mkdirs()
        Files.createSymbolicLink(File(root, "linked").toPath(), precious.parentFile!!.toPath())
        import("demo.zip", zip(manifest))
        Files.createSymbolicLink(File(store.folder("demo"), "inner").toPath(), precious.parentFile!!.toPath())
        store.delete("demo")
        store.delete("linked")
        assertEquals(emptyList<InstalledBundle>(), list())
        assertEquals("still here", precious.readText())
    }
}
