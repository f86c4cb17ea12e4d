package dev.streamfuse

import java.io.File
import java.nio.file.Files
import java.security.KeyPairGenerator
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertFalse
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.Test

/** Loading a damaged bundle fails with one sentence that names the cause. */
class DamagedBundleTest {
    private val good = Repository.bundle("demo").canonicalFile
    private val folder = Repository.scratch("damaged")

    @Test
    fun `a folder that is none, or holds no bundle`() {
        refused(File("/nowhere/at all"), ErrorCode.BAD_FILE, "/nowhere/at all")
        refused(changed(without = "manifest.json"), ErrorCode.BAD_FILE, "manifest.json")
    }

    @Test
    fun `a manifest that is damaged, newer or contradicts its program`() {
        refused(changed("manifest.json" to { "{" }), ErrorCode.BAD_FILE, "manifest.json")
        refused(manifest("\"format_version\": 4", "\"format_version\": 99"), ErrorCode.BAD_FILE, "99")
        refused(manifest("\"capacity\": 1024", "\"capacity\": 2048"), ErrorCode.BAD_PROGRAM, "capacity is 2048")
    }

    @Test
    fun `files that are missing, cut off or changed`() {
        for (name in listOf("model.pte", "tokenizer.json", "draft.safetensors"))
            refused(changed(without = name), ErrorCode.BAD_FILE, name)
        refused(changed("tokenizer.json" to { it.dropLast(100) }), ErrorCode.BAD_FILE, "tokenizer.json")
        refused(changed("tokenizer.json" to { it.replaceFirst("the", "teh") }), ErrorCode.BAD_FILE, "tokenizer.json")
    }

    @Test
    fun `a bundle for another engine`() {
        val coreml = manifest("\"target\": \"executorch\"", "\"target\": \"coreml\"")
        val text = File(coreml, "manifest.json").readText()
        File(coreml, "manifest.json").writeText(text.replace("\"model.pte\"", "\"model.mlpackage/Manifest.json\""))
        File(coreml, "model.mlpackage").mkdir()
        Files.createLink(File(coreml, "model.mlpackage/Manifest.json").toPath(), File(good, "model.pte").toPath())
        refused(coreml, ErrorCode.BAD_PROGRAM, "is for Core ML")
    }

    @Test
    fun `a number of threads that the engine does not take`() {
        val options = Options(threads = 1000, checkHashes = false)
        val error = failureOf<StreamFuseException> { StreamFuse.loadBlocking(good, options) }
        assertTrue("num_threads" in error.message!!, error.message)
    }

    @Test
    fun `with a key, only what it signed is loaded`() {
        val (ours, other) = List(2) { KeyPairGenerator.getInstance("Ed25519").generateKeyPair() }
        val options = Options(checkHashes = false, publicKey = ours.line)
        val bundle = changed(without = "manifest.sig")
        refused(bundle, ErrorCode.BAD_FILE, "manifest.sig: missing", options)
        sign(bundle, ours)
        StreamFuse.loadBlocking(bundle, options).close()
        refused(bundle, ErrorCode.BAD_FILE, "manifest.sig: does not sign", options.copy(publicKey = other.line))
        refused(bundle, ErrorCode.BAD_ARGUMENT, "64 hexadecimal digits", options.copy(publicKey = "ours"))
        refused(sign(changed("tokenizer.json" to { it.replaceFirst("the", "teh") }), ours), ErrorCode.BAD_FILE,
            "tokenizer.json: files.sha256", options)
    }

    private fun manifest(from: String, to: String): File = changed("manifest.json" to { text ->
        check(from in text) { "the manifest has no $from" }
        text.replaceFirst(from, to)
    })

    /** The bundle with one file changed or left out; the others are links. */
    private fun changed(change: Pair<String, (String) -> String>? = null, without: String? = null): File {
        folder.deleteRecursively()
        folder.mkdirs()
        for (file in good.listFiles()!!.filter { it.name != without }) {
            val copy = File(folder, file.name)
            if (file.name == change?.first) copy.writeText(change.second(file.readText()))
            else Files.createLink(copy.toPath(), file.toPath())
        }
        return folder
    }

    private fun refused(bundle: File, code: ErrorCode, named: String, options: Options = Options()) {
        val error = failureOf<StreamFuseException> { StreamFuse.loadBlocking(bundle, options).close() }
        val sentence = error.message!!
        assertTrue(named in sentence, sentence)
        assertFalse('\n' in sentence, sentence)
        assertEquals(code, error.code, sentence)
    }
}
