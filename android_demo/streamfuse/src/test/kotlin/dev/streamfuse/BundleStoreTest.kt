package dev.streamfuse

import dev.streamfuse.testing.Publisher
import dev.streamfuse.testing.Publisher.Companion.with
import java.io.ByteArrayInputStream
import java.io.ByteArrayOutputStream
import java.io.File
import java.io.IOException
import java.io.InputStream
import java.nio.file.Files
import java.nio.file.Path
import java.security.KeyPairGenerator
import java.util.concurrent.CountDownLatch
import java.util.concurrent.Semaphore
import java.util.zip.ZipEntry
import java.util.zip.ZipOutputStream
import kotlinx.coroutines.Dispatchers
import kotlinx.coroutines.async
import kotlinx.coroutines.cancelAndJoin
import kotlinx.coroutines.flow.first
import kotlinx.coroutines.flow.toList
import kotlinx.coroutines.launch
import kotlinx.coroutines.runBlocking
import kotlinx.coroutines.withTimeout
import kotlinx.serialization.json.JsonObject
import kotlinx.serialization.json.JsonPrimitive
import kotlinx.serialization.json.jsonObject
import org.junit.jupiter.api.AfterEach
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertFalse
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.Test
import org.junit.jupiter.api.io.TempDir

/** Downloads from a server that has the faults of real ones: only a whole, checked bundle is ever listed. */
class BundleStoreTest {
    @TempDir lateinit var temporary: Path
    private val root get() = temporary.resolve("bundles").toFile()
    private val publisher = Publisher()
    private val checked = mutableListOf<File>()
    private val store by lazy { store() }

    /** A file `damaged` makes a folder no bundle. */
    private fun store(limits: BundleLimits = BundleLimits()) = BundleStore(root, limits = limits) { folder ->
        checked += folder
        if (File(folder, "damaged").exists()) throw StreamFuseException(ErrorCode.BAD_FILE, "model.pte is damaged")
    }.apply { http = Http(timeoutMs = 5_000, retryMs = listOf(5, 5)) }

    @AfterEach fun stop() = publisher.close()

    private fun bytes(count: Int) = ByteArray(count) { (it * 31 + it / 251).toByte() }

    private val demo = mapOf(
        "manifest.json" to "{}".toByteArray(), "model.pte" to bytes(300_000), "model.mlpackage/Data/weights #1.bin" to bytes(1_000),
        "empty" to ByteArray(0),
    )

    private fun entries(): List<CatalogEntry> = runBlocking { store.catalog(publisher.address).entries }

    private fun entry(): CatalogEntry = entries().single()

    private fun download(entry: CatalogEntry, from: BundleStore = store): List<BundleProgress> =
        runBlocking { withTimeout(20_000) { from.download(entry).toList() } }

    private fun refused(code: ErrorCode, named: String, body: () -> Unit) {
        val error = failureOf<StreamFuseException>(body)
        assertEquals(code, error.code, error.message)
        assertTrue(named in error.message!!, error.message)
        assertFalse('\n' in error.message!!, error.message)
    }

    private fun list() = runBlocking { store.list() }

    private fun left() = root.list().orEmpty().toList()

    private fun requested(path: String) = publisher.requests.filter { it.first == path }.map { it.second }

    @Test
    fun `a bundle of the catalogue is downloaded, checked and listed`() {
        publisher.publish("demo" to demo)
        val entry = entry()
        assertEquals(listOf("demo", "The demo", "apache-2.0"), listOf(entry.name, entry.title, entry.license))
        assertEquals(1024 to 301_002L, entry.contextLength to entry.bytes)
        val steps = download(entry)
        val bundle = (steps.last() as BundleProgress.Installed).bundle
        assertEquals(InstalledBundle("demo", File(root, "demo"), 301_002, entry.id), bundle)
        assertEquals(listOf(bundle), list())
        assertEquals(listOf("demo"), left())
        assertEquals(Publisher.contentOf(bundle.folder).mapValues { it.value.toList() }, demo.mapValues { it.value.toList() })
        assertEquals(1, checked.size)
        val received = steps.filterIsInstance<BundleProgress.Receiving>().map { it.doneBytes }
        assertEquals(received.sorted(), received)
        assertEquals("demo/manifest.json", publisher.requests[1].first, "what decides comes first")

        publisher.requests.clear()
        assertEquals(listOf(BundleProgress.Installed(bundle)), download(entry), "it is here already")
        assertEquals(0, publisher.requests.size)
    }

    @Test
    fun `a cut connection is tried again from where it ended`() {
        publisher.publish("demo" to demo)
        publisher.cuts["demo/model.pte"] = ArrayDeque(listOf(100_000, 50_000, 0, 70_000))
        download(entry())
        assertEquals(
            listOf(null, "bytes=100000-", "bytes=150000-", "bytes=150000-", "bytes=220000-"), requested("demo/model.pte"),
        )
        assertEquals(listOf("demo"), left())
    }

    @Test
    fun `what has arrived is kept when the server is gone, and another store goes on from there`() {
        publisher.publish("demo" to demo)
        publisher.cuts["demo/model.pte"] = ArrayDeque(listOf(200_000, 0, 0))
        val entry = entry()
        refused(ErrorCode.NETWORK, "model.pte") { download(entry) }
        assertEquals(emptyList<InstalledBundle>(), list())
        assertEquals(200_002 + 1_000, runBlocking { store.receivedBytes(entry) })
        publisher.requests.clear()
        val steps = download(entry, store())
        assertEquals(201_002L, (steps.first { it is BundleProgress.Receiving } as BundleProgress.Receiving).doneBytes)
        assertEquals(listOf("demo/model.pte" to "bytes=200000-"), publisher.requests)
        assertEquals(listOf("demo"), left())
    }

    @Test
    fun `a server without ranges starts the file again`() {
        publisher.publish("demo" to demo)
        publisher.hasRanges = false
        publisher.tellsSize = false
        publisher.cuts["demo/model.pte"] = ArrayDeque(listOf(200_000))
        download(entry())
        assertEquals(listOf(null, "bytes=200000-"), requested("demo/model.pte"))
        assertEquals(300_000, File(root, "demo/model.pte").length())
    }

    @Test
    fun `a download that is cancelled goes on from there, or is discarded`(): Unit = runBlocking {
        publisher.publish("demo" to demo)
        val gate = Semaphore(0)
        publisher.halfway = { if (it == "demo/model.pte") gate.acquire() }
        val entry = entry()
        val job = launch(Dispatchers.IO) { store.download(entry).toList() }
        withTimeout(10_000) { while (store.receivedBytes(entry) < 150_000) Thread.sleep(5) }
        gate.release(10)
        job.cancelAndJoin()
        val here = store.receivedBytes(entry)
        assertTrue(here in 150_000..301_002, "$here")
        assertEquals(emptyList<InstalledBundle>(), list())
        publisher.requests.clear()
        download(entry)
        assertTrue(requested("demo/model.pte").all { it != null }, "${publisher.requests}")
        assertEquals(listOf("demo"), left())

        publisher.publish("other" to demo + ("manifest.json" to "{ }".toByteArray()))
        publisher.cuts["other/model.pte"] = ArrayDeque(listOf(10, 0, 0))
        val other = entry()
        refused(ErrorCode.NETWORK, "other/model.pte") { download(other) }
        store.discard(other)
        assertEquals(0, store.receivedBytes(other))
        assertEquals(listOf("demo"), left())
    }

    @Test
    fun `a flow that is left ends the download`(): Unit = runBlocking {
        publisher.publish("demo" to demo)
        publisher.cuts["demo/model.pte"] = ArrayDeque(List(100) { 1000 })
        store.download(entry()).first { it is BundleProgress.Receiving && it.doneBytes > 2_000 }
        val requests = publisher.requests.size
        Thread.sleep(50)
        assertEquals(requests, publisher.requests.size)
    }

    @Test
    fun `a file that is not that of the catalogue is refused, and its bytes are not kept`() {
        publisher.publish("demo" to demo)
        val entry = entry()
        publisher.put("demo/model.pte", bytes(300_000).also { it[299_999] = 1 })
        refused(ErrorCode.BAD_FILE, "model.pte is not the file of the catalogue") { download(entry) }
        publisher.put("demo/model.pte", bytes(300_001))
        refused(ErrorCode.BAD_FILE, "model.pte has 300001 bytes on the server, but 300000 in the catalogue") { download(entry) }
        publisher.tellsSize = false
        refused(ErrorCode.BAD_FILE, "model.pte is larger on the server") { download(entry) }
        assertEquals(1_002, runBlocking { store.receivedBytes(entry) }, "the other files are kept")
        publisher.put("demo/model.pte", bytes(300_000))
        download(entry)
        assertEquals(listOf("demo"), left())
    }

    @Test
    fun `what a power failure damaged is downloaded again by itself`() {
        publisher.publish("demo" to demo)
        publisher.cuts["demo/model.pte"] = ArrayDeque(listOf(200_000, 0, 0))
        val entry = entry()
        refused(ErrorCode.NETWORK, "model.pte") { download(entry) }
        val part = root.walk().single { it.name == "${entry.files.getValue("model.pte").sha256}.part" }
        part.writeBytes(ByteArray(200_000))
        publisher.requests.clear()
        download(entry)
        assertEquals(listOf("bytes=200000-", null), requested("demo/model.pte"))
        assertEquals(listOf("demo"), left())
    }

    @Test
    fun `a server that is overloaded is asked again, one that refuses is not`() {
        publisher.publish("demo" to demo)
        val entry = entry()
        publisher.statuses["demo/model.pte"] = ArrayDeque(listOf(503, 429))
        download(entry)
        runBlocking { store.delete("demo") }
        publisher.statuses["demo/model.pte"] = ArrayDeque(listOf(404))
        publisher.requests.clear()
        refused(ErrorCode.NETWORK, "404") { download(entry) }
        assertEquals(1, requested("demo/model.pte").size)
        publisher.statuses["catalog.json"] = ArrayDeque(listOf(403))
        refused(ErrorCode.NETWORK, "403") { entries() }
        publisher.statuses["catalog.json"] = ArrayDeque(listOf(302))
        refused(ErrorCode.NETWORK, "302") { entries() }
        publisher.close()
        refused(ErrorCode.NETWORK, "catalog.json cannot be downloaded") { entries() }
    }

    @Test
    fun `a bundle that the library refuses is never listed, and nothing is kept`() {
        publisher.publish("demo" to demo + ("damaged" to ByteArray(1)))
        refused(ErrorCode.BAD_FILE, "model.pte is damaged") { download(entry()) }
        assertEquals(emptyList<String>(), left())
    }

    @Test
    fun `with too little room nothing is asked for, and a disk that is full in the middle is named`() {
        publisher.publish("demo" to demo)
        val entry = entry()
        publisher.requests.clear()
        store.usableBytes = { (64L shl 20) + 100_000 }
        refused(ErrorCode.NO_SPACE, "it needs 0 MB, and 0 MB are free") { download(entry) }
        assertEquals(0, publisher.requests.size)
        store.usableBytes = { Long.MAX_VALUE }
        val part = File(root, ".download-${entry.id}/${entry.files.getValue("model.pte").sha256}.part")
        part.parentFile.mkdirs()
        Files.createSymbolicLink(part.toPath(), Path.of("/dev/full")) // every write there says that the disk is full
        refused(ErrorCode.NO_SPACE, "make room and try again") { download(entry) }
        part.delete()
        download(entry)
        assertEquals(listOf("demo"), left())
    }

    @Test
    fun `two stores at once - the same bundle is busy, others are not, and both get a name`(): Unit = runBlocking {
        publisher.publish("demo" to demo)
        val gate = CountDownLatch(1)
        publisher.halfway = { if (it == "demo/model.pte") gate.await() }
        val one = store()
        val other = store()
        val entry = entry()
        val running = async(Dispatchers.IO) { one.download(entry).toList() }
        withTimeout(10_000) { while (other.receivedBytes(entry) < 100_000) Thread.sleep(5) }
        refused(ErrorCode.BUSY, "demo is being downloaded already") { download(entry, other) }
        refused(ErrorCode.BUSY, "demo is being downloaded already") { runBlocking { other.discard(entry) } }
        other.sweep(keepDays = -1)
        publisher.publish("demo" to demo + ("manifest.json" to "{ }".toByteArray())) { it.with("url", "second/") }
        (demo + ("manifest.json" to "{ }".toByteArray())).forEach { (path, content) -> publisher.put("second/$path", content) }
        download(entry(), other)
        gate.countDown()
        running.await()
        assertEquals(listOf("demo", "demo 2"), list().map { it.name })
        assertEquals(setOf("demo", "demo 2"), left().toSet())
    }

    @Test
    fun `a catalogue with duplicate or hostile entries is refused with the entry and the field`() {
        fun refuses(named: String, edit: (JsonObject) -> JsonObject) {
            publisher.publish("good" to demo, "demo" to demo) { if (it["name"] == JsonPrimitive("demo")) edit(it) else it }
            refused(ErrorCode.BAD_FILE, named) { entries() }
        }
        fun withFile(path: String, hash: String = "0".repeat(64), bytes: Long = 0): (JsonObject) -> JsonObject = { entry ->
            val file = JsonObject(mapOf("sha256" to JsonPrimitive(hash), "bytes" to JsonPrimitive(bytes)))
            entry.with("files", JsonObject(entry.getValue("files").jsonObject + (path to file)))
        }
        refuses("good is in it twice") { it.with("name", "good") }
        for (path in listOf("../evil", "/etc/evil", "a/../../evil", "a\\..\\evil", "a//b", "./a", "a\u0000b", "c:evil", "x".repeat(256))) {
            refuses("bundles[1].files has the path", withFile(path))
        }
        refuses("bundles[1].files has the path", withFile("d/".repeat(10) + "deep"))
        refuses("bundles[1].files has \"model.pte/below\" below a file", withFile("model.pte/below"))
        refuses("bundles[1].files.\"x\".sha256 is not a SHA-256", withFile("x", hash = "../../evil"))
        refuses("bundles[1].files.\"x\".bytes is -1", withFile("x", bytes = -1))
        refuses("is larger than the limit of 16384 MiB") { withFile("y", bytes = 16L shl 30)(withFile("x", bytes = 16L shl 30)(it)) }
        refuses("bundles[1].bytes is 5, but its files have 301002") { it.with("bytes", 5) }
        refuses("bundles[1].files has no manifest.json") { it.with("files", JsonObject(it.getValue("files").jsonObject - "manifest.json")) }
        for (name in listOf("", "..", ".hidden", "a/b", "x".repeat(61), "a b")) refuses("bundles[1].name") { it.with("name", name) }
        for (title in listOf("", "two\nlines", "\u202Eesrever", "x".repeat(201))) refuses("bundles[1].title") { it.with("title", title) }
        refuses("bundles[1].context_length is 0") { it.with("context_length", 0) }
        for (url in listOf("http://models.example/demo/", "ftp://models.example/demo/", "file:///data/", "demo", "demo/?a=/", "de mo/", "//u@h/")) {
            refuses("bundles[1].url is \"$url\"") { it.with("url", url) }
        }
        refuses("the catalogue is damaged") { it.with("context_length", "many") }
        publisher.put("catalog.json", "<html>".toByteArray())
        refused(ErrorCode.BAD_FILE, "the catalogue is damaged") { entries() }
        publisher.put("catalog.json", "{\"catalog_version\": 2}".toByteArray())
        refused(ErrorCode.BAD_FILE, "catalog_version is 2") { entries() }
        publisher.put("catalog.json", ByteArray((4 shl 20) + 1) { ' '.code.toByte() })
        refused(ErrorCode.BAD_FILE, "is larger than 4 MiB") { entries() }
        for (address in listOf("http://models.example/catalog.json", "catalog.json", "", "https://", "file:///etc/passwd", "no address")) {
            refused(ErrorCode.BAD_ARGUMENT, "is not an address that begins with https://") { runBlocking { store.catalog(address) } }
        }
        assertEquals(emptyList<String>(), left())
    }

    @Test
    fun `an entry says why a device cannot run it`() {
        publisher.publish("demo" to demo, "npu" to demo, "phone" to demo) {
            if (it["name"] == JsonPrimitive("npu")) it.with("backend", "qnn")
            else if (it["name"] == JsonPrimitive("phone")) it.with("target", "coreml")
            else it
        }
        val (demo, npu, phone) = entries()
        val backends = mapOf("kernels" to null)
        assertEquals(null, demo.unsupportedReason(backends))
        assertEquals("this library has no backend qnn", npu.unsupportedReason(backends))
        assertEquals("no Snapdragon", npu.unsupportedReason(backends + ("qnn" to "no Snapdragon")))
        assertEquals("it is for coreml, and this library runs bundles for executorch", phone.unsupportedReason(backends))
    }

    @Test
    fun `unfinished work is swept by age, a running import is not, and deleted bundles are gone`(): Unit = runBlocking {
        File(root, ".unfinished-1/half").mkdirs()
        publisher.publish("demo" to demo)
        publisher.cuts["demo/model.pte"] = ArrayDeque(listOf(200_000, 0, 0))
        val entry = entry()
        refused(ErrorCode.NETWORK, "model.pte") { download(entry) }
        val zip = zip("manifest.json" to ByteArray(2))
        store.import { ZipSource("mine.zip", null) { runBlocking { store.sweep() }.let { ByteArrayInputStream(zip) } } }.toList()
        assertEquals(setOf("mine", ".download-${entry.id}"), left().toSet())
        store.sweep(keepDays = -1)
        assertEquals(listOf("mine"), left())
        store.delete("mine")
        assertEquals(emptyList<String>(), left())
        for (name in listOf("../bundles", "", ".", ".download-1")) failureOf<IllegalArgumentException> { runBlocking { store.delete(name) } }
        failureOf<IOException> { runBlocking { store.delete("nowhere") } }
    }

    // ---- imports

    private fun zip(vararg entries: Pair<String, ByteArray>): ByteArray = ByteArrayOutputStream().also { bytes ->
        ZipOutputStream(bytes).use { zip ->
            for ((name, content) in entries) {
                zip.putNextEntry(ZipEntry(name))
                zip.write(content)
            }
        }
    }.toByteArray()

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
        import("demo.zip", zip("demo/manifest.json" to ByteArray(2), "demo/model.pte" to ByteArray(9), "__MACOSX/demo/._x" to ByteArray(3)))
        assertEquals(setOf("manifest.json", "model.pte"), store.folder("demo").list()!!.toSet())
    }

    @Test
    fun `untrusted zips are refused - paths that lead out, limits, what is no bundle`() {
        for (path in listOf("../evil", "/etc/evil", "a/../../evil", "a\\..\\evil", "a//b", "./a", "a\u0000b", "x".repeat(256))) {
            refusedImport(zip(manifest, path to ByteArray(1)), "is not allowed in a bundle", "is a damaged zip")
        }
        refusedImport(zip(manifest, "d/".repeat(10) + "deep" to ByteArray(1)), "is not allowed in a bundle")
        refusedImport(zip(manifest, "bomb" to ByteArray(10_001)), "larger than the limit")
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

            override fun forEachFile(take: (path: String, content: InputStream) -> Unit) = take("zeros", counted(object : InputStream() {
                override fun read() = 0

                override fun read(into: ByteArray, offset: Int, length: Int) = 1
            }))
        }
        store.import { endless }.first { it is BundleProgress.Receiving && it.doneBytes > 0 }
        assertEquals(emptyList<String>(), left())
    }

    @Test
    fun `a link in a bundle is deleted, what it leads to is not`(): Unit = runBlocking {
        val precious = File(temporary.resolve("elsewhere").toFile().apply { mkdirs() }, "precious").apply { writeText("still here") }
        root.mkdirs()
        Files.createSymbolicLink(File(root, "linked").toPath(), precious.parentFile!!.toPath())
        import("demo.zip", zip(manifest))
        Files.createSymbolicLink(File(store.folder("demo"), "inner").toPath(), precious.parentFile!!.toPath())
        store.delete("demo")
        store.delete("linked")
        assertEquals(emptyList<InstalledBundle>(), list())
        assertEquals("still here", precious.readText())
    }

    // ---- with the native library

    @Test
    fun `a real bundle is installed with the key that signed it, and with no other`() {
        val (ours, other) = List(2) { KeyPairGenerator.getInstance("Ed25519").generateKeyPair() }
        val signed = File(Repository.scratch("published"), "signed").apply { deleteRecursively() }.apply { mkdirs() }
        for (file in Repository.bundle("demo").canonicalFile.listFiles()!!.filter { it.name != "manifest.sig" }) {
            Files.createLink(File(signed, file.name).toPath(), file.toPath())
        }
        sign(signed, ours)
        val file = temporary.resolve("catalog.json").toFile()
        val command = listOf(System.getProperty("streamfuse.python"), "-m", "streamfuse", "bundle", "catalog", "$signed", "-o", "$file")
        val python = ProcessBuilder(command).directory(Repository.root).redirectErrorStream(true)
        python.environment() += mapOf("PYTHONPATH" to "src", "PYTHONSAFEPATH" to "1")
        val said = python.start().run { inputStream.readBytes().decodeToString().also { waitFor() } }
        assertTrue(file.exists(), said)
        for ((path, content) in Publisher.contentOf(signed)) publisher.put("signed/$path", content)
        publisher.put("catalog.json", file.readBytes())
        val entry = entry()
        assertEquals("SmolLM2-135M-Instruct", entry.title)
        assertEquals(null, entry.unsupportedReason())
        refused(ErrorCode.BAD_FILE, "manifest.sig: does not sign") { download(entry, BundleStore(root, other.line)) }
        assertEquals(emptyList<String>(), left())
        download(entry, BundleStore(root, ours.line))
        StreamFuse.loadBlocking(list().single().folder, Options(checkHashes = false)).use { assertTrue("SmolLM2" in it.name) }
    }
}
