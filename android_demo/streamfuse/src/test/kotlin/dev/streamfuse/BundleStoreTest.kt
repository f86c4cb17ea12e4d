package dev.streamfuse

import dev.streamfuse.testing.Publisher
import dev.streamfuse.testing.Publisher.Companion.with
import java.io.ByteArrayInputStream
import java.io.File
import java.io.FileFilter
import java.io.IOException
import java.nio.file.Files
import java.nio.file.Path
import java.security.KeyPairGenerator
import java.util.concurrent.CountDownLatch
import java.util.concurrent.Semaphore
import kotlinx.coroutines.Dispatchers
import kotlinx.coroutines.async
import kotlinx.coroutines.cancelAndJoin
import kotlinx.coroutines.flow.first
import kotlinx.coroutines.flow.toList
import kotlinx.coroutines.launch
import kotlinx.coroutines.runBlocking
import kotlinx.coroutines.withTimeout
import kotlinx.serialization.json.jsonObject
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertFalse
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.Test

/** Downloads from a server that has the faults of real ones: only a whole, checked bundle is ever listed. */
class BundleStoreTest : StoreTestCase() {
    @Test
    fun `a bundle of the catalogue is downloaded, checked and listed`() {
        publisher.publish("demo" to demo)
        val entry = entry()
        assertEquals(listOf("demo", "The demo", "apache-2.0"), listOf(entry.name, entry.title, entry.license))
        assertEquals(1024 to demoBytes, entry.contextLength to entry.bytes)
        val steps = download(entry)
        val bundle = (steps.last() as BundleProgress.Installed).bundle
        assertEquals(InstalledBundle("demo", File(root, "demo"), demoBytes, entry.id), bundle)
        assertEquals(listOf(bundle), list())
        assertEquals(listOf("demo"), left())
        val content = Publisher.contentOf(bundle.folder).mapValues { it.value.toList() }
        assertEquals(demo.mapValues { it.value.toList() }, content)
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
            listOf(null, "bytes=100000-", "bytes=150000-", "bytes=150000-", "bytes=220000-"),
            requested("demo/model.pte"),
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
        assertEquals(demoBytes - 100_000, runBlocking { store.receivedBytes(entry) })
        publisher.requests.clear()
        val received = download(entry, store()).filterIsInstance<BundleProgress.Receiving>().map { it.doneBytes }
        // Any of them may be skipped for a later one.
        assertTrue(received.all { it in demoBytes - 100_000..demoBytes }, "$received")
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
    fun `a file that is incomplete on the server is not requested for ever`() {
        publisher.publish("demo" to demo)
        val entry = entry()
        publisher.tellsSize = false
        publisher.put("demo/model.pte", bytes(100_000))
        refused(ErrorCode.NETWORK, "the connection ended early") { download(entry) }
        assertEquals(listOf(null, "bytes=100000-", null), requested("demo/model.pte"))
        publisher.statuses["demo/model.pte"] = ArrayDeque(List(9) { 416 })
        publisher.requests.clear()
        refused(ErrorCode.NETWORK, "416") { download(entry) }
        assertEquals(listOf("bytes=100000-", null), requested("demo/model.pte"))
        publisher.statuses.clear()
        publisher.put("demo/model.pte", demo.getValue("model.pte"))
        download(entry)
        assertEquals(listOf("demo"), left())
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
        assertTrue(here in 150_000..demoBytes, "$here")
        assertEquals(emptyList<InstalledBundle>(), list())
        publisher.requests.clear()
        download(entry)
        assertTrue(requested("demo/model.pte").all { it != null }, "${publisher.requests}")
        assertEquals(listOf("demo"), left())

        publisher.publish("other" to Publisher.bundle(demo, "other"))
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
        refused(ErrorCode.BAD_FILE, "has 300001 bytes on the server, but 300000 in the catalogue") { download(entry) }
        publisher.tellsSize = false
        refused(ErrorCode.BAD_FILE, "model.pte is larger on the server") { download(entry) }
        assertEquals(demoBytes - 300_000, runBlocking { store.receivedBytes(entry) }, "the other files are kept")
        publisher.put("demo/model.pte", bytes(300_000))
        download(entry)
        assertEquals(listOf("demo"), left())
    }

    @Test
    fun `before the manifest says that a file belongs to the bundle, it is not requested`() {
        val hostile = listOf(
            "does not list more.bin, which is in the catalogue" to demo + ("more.bin" to bytes(10)),
            "lists empty, which is not in the catalogue" to demo - "empty",
            "has another size or SHA-256 of model.pte than the catalogue" to demo + ("model.pte" to bytes(299_999)),
            "has another size or SHA-256 of model.pte" to demo + ("model.pte" to ByteArray(300_000)),
            "has no list of files" to demo + ("manifest.json" to "{}".toByteArray()),
        )
        for ((problem, content) in hostile) {
            publisher.publish("demo" to content)
            val entry = entry()
            publisher.requests.clear()
            refused(ErrorCode.BAD_FILE, problem) { download(entry) }
            assertEquals(listOf("demo/manifest.json" to null), publisher.requests, problem)
            assertEquals(emptyList<String>(), left(), problem)
        }
        publisher.publish("demo" to demo) { entry ->
            val files = entry.getValue("files").jsonObject
            val large = files.getValue("manifest.json").jsonObject.with("bytes", 17 shl 20)
            val bytes = demoBytes - demo.getValue("manifest.json").size + (17 shl 20)
            entry.with("files", files.with("manifest.json", large)).with("bytes", bytes)
        }
        val entry = entry()
        publisher.requests.clear()
        refused(ErrorCode.BAD_FILE, "at most 16 MiB are accepted") { download(entry) }
        assertEquals(0, publisher.requests.size)
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
    fun `only a failure that a retry can fix is temporary`() {
        publisher.publish("demo" to demo)
        val entry = entry()
        fun isTemporary(body: () -> Unit) = failureOf<StreamFuseException>(body).isTemporary
        for (status in listOf(500, 503, 429, 408, 302, 403, 404)) {
            val expected = status >= 500 || status in listOf(408, 429)
            publisher.statuses["catalog.json"] = ArrayDeque(listOf(status))
            publisher.statuses["demo/model.pte"] = ArrayDeque(List(3) { status })
            assertEquals(expected, isTemporary { entries() }, "the catalogue: $status")
            assertEquals(expected, isTemporary { download(entry) }, "a file: $status")
        }
        publisher.statuses.clear()
        publisher.redirects["catalog.json"] = publisher.address.replace("://", "://user@").replace("catalog", "demo/manifest")
        assertFalse(isTemporary { entries() }, "a redirect to an address that is not allowed")
        publisher.redirects["catalog.json"] = publisher.address.replace("catalog", "demo/manifest") + "?a|b"
        assertFalse(isTemporary { entries() }, "a redirect to what is no address")
        publisher.redirects.clear()
        publisher.publish("demo" to demo.mapValues { ByteArray(it.value.size) })
        assertFalse(isTemporary { download(entry) }, "another file")
        publisher.close()
        assertTrue(isTemporary { entries() }, "no server")
    }

    @Test
    fun `a bundle that the library refuses is never listed, and nothing is kept`() {
        publisher.publish("demo" to Publisher.bundle(demo + ("damaged" to ByteArray(1))))
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
        Files.createSymbolicLink(part.toPath(), Path.of("/dev/full")) // every write to it fails with ENOSPC
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
        val second = Publisher.bundle(demo, "second")
        publisher.publish("demo" to second) { it.with("url", "second/") }
        second.forEach { (path, content) -> publisher.put("second/$path", content) }
        download(entry(), other)
        gate.countDown()
        running.await()
        assertEquals(listOf("demo", "demo 2"), list().map { it.name })
        assertEquals(setOf("demo", "demo 2"), left().toSet())
    }

    @Test
    fun `a bundle that another store installs while this one looks for it is installed once`() {
        publisher.publish("demo" to demo)
        val entry = entry()
        val late = object : File(root.path) {
            private var isFirst = true

            override fun listFiles(filter: FileFilter?): Array<File>? = super.listFiles(filter).also {
                if (isFirst) download(entry)
                isFirst = false
            }
        }
        val steps = download(entry, BundleStore(late) {})
        assertEquals(listOf(BundleProgress.Installed(list().single())), steps)
        assertEquals(listOf("demo"), left())
    }

    @Test
    fun `unfinished work is swept by age, a running import is not, and deleted bundles are gone`(): Unit = runBlocking {
        File(root, ".unfinished-1/half").mkdirs()
        publisher.publish("demo" to demo)
        publisher.cuts["demo/model.pte"] = ArrayDeque(listOf(200_000, 0, 0))
        val entry = entry()
        refused(ErrorCode.NETWORK, "model.pte") { download(entry) }
        val zip = zip("manifest.json" to ByteArray(2))
        val sweeping = ZipSource("mine.zip", null) {
            runBlocking { store.sweep() } // in the middle of the import
            ByteArrayInputStream(zip)
        }
        store.import { sweeping }.toList()
        assertEquals(setOf("mine", ".download-${entry.id}"), left().toSet())
        store.sweep(keepDays = -1)
        assertEquals(listOf("mine"), left())
        store.delete("mine")
        assertEquals(emptyList<String>(), left())
        for (name in listOf("../bundles", "", ".", ".download-1")) {
            failureOf<IllegalArgumentException> { runBlocking { store.delete(name) } }
        }
        failureOf<IOException> { runBlocking { store.delete("nowhere") } }
    }

    @Test
    fun `a real bundle is installed with the key that signed it, and with no other`() {
        val (ours, other) = List(2) { KeyPairGenerator.getInstance("Ed25519").generateKeyPair() }
        val signed = File(Repository.scratch("published"), "signed").apply { deleteRecursively() }.apply { mkdirs() }
        for (file in Repository.bundle("demo").canonicalFile.listFiles()!!.filter { it.name != "manifest.sig" }) {
            Files.createLink(File(signed, file.name).toPath(), file.toPath())
        }
        sign(signed, ours)
        val file = temporary.resolve("catalog.json").toFile()
        val program = listOf(System.getProperty("streamfuse.python"), "-m", "streamfuse")
        val python = ProcessBuilder(program + listOf("bundle", "catalog", "$signed", "-o", "$file"))
            .directory(Repository.root).redirectErrorStream(true)
        python.environment() += mapOf("PYTHONPATH" to "src", "PYTHONSAFEPATH" to "1")
        val output = python.start().run { inputStream.readBytes().decodeToString().also { waitFor() } }
        assertTrue(file.exists(), output)
        for ((path, content) in Publisher.contentOf(signed)) publisher.put("signed/$path", content)
        publisher.put("catalog.json", file.readBytes())
        val entry = entry()
        assertEquals("SmolLM2-135M-Instruct", entry.title)
        assertEquals(null, entry.unsupportedReason())
        publisher.requests.clear()
        for (store in listOf(BundleStore(root, other.line), BundleStore(root, other.line, check = {}))) {
            refused(ErrorCode.BAD_FILE, "manifest.sig: does not sign") { download(entry, store) }
        }
        val described = listOf("signed/manifest.json", "signed/manifest.sig")
        assertEquals(described + described, publisher.requests.map { it.first }, "no byte of the model")
        assertEquals(emptyList<String>(), left())
        download(entry, BundleStore(root, ours.line))
        StreamFuse.loadBlocking(list().single().folder, Options(checkHashes = false)).use { assertTrue("SmolLM2" in it.name) }
    }
}
