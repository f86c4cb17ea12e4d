package dev.streamfuse.app.model

import dev.streamfuse.BundleStore
import dev.streamfuse.Options
import dev.streamfuse.app.R
import dev.streamfuse.testing.Publisher
import dev.streamfuse.testing.Publisher.Companion.with
import java.io.ByteArrayInputStream
import java.io.ByteArrayOutputStream
import java.io.File
import java.util.concurrent.CountDownLatch
import java.util.concurrent.Executors
import java.util.concurrent.Semaphore
import java.util.zip.ZipEntry
import java.util.zip.ZipOutputStream
import kotlinx.coroutines.CoroutineDispatcher
import kotlinx.coroutines.CoroutineScope
import kotlinx.coroutines.Dispatchers
import kotlinx.coroutines.SupervisorJob
import kotlinx.coroutines.asCoroutineDispatcher
import kotlinx.coroutines.cancel
import kotlinx.coroutines.flow.first
import kotlinx.coroutines.launch
import kotlinx.coroutines.runBlocking
import kotlinx.coroutines.withTimeout
import kotlinx.coroutines.withTimeoutOrNull
import kotlinx.serialization.json.JsonPrimitive
import org.junit.After
import org.junit.Assert.assertEquals
import org.junit.Assert.assertFalse
import org.junit.Assert.assertNull
import org.junit.Assert.assertTrue
import org.junit.Rule
import org.junit.Test
import org.junit.rules.TemporaryFolder

/** The gallery: what a publisher has, and what becomes of it on this device. */
class BundlesModelTest {
    @get:Rule val temporary = TemporaryFolder()
    private val root by lazy { File(temporary.root, "bundles") }
    private val publisher = Publisher()
    private val engine = FakeEngine()
    private val preferences = FakePreferences()
    private val scopes = mutableListOf<CoroutineScope>()
    private val bundles by lazy { start() }

    /** The app as a new process makes it. */
    private fun start(dispatcher: CoroutineDispatcher = Dispatchers.IO): BundlesModel {
        val scope = CoroutineScope(SupervisorJob() + dispatcher).also { scopes += it }
        val store = BundleStore(root) { engine.open(it, Options()).close() }
        val settings = SettingsStore(preferences, scope)
        val saved = SavedChats(File(temporary.root, "chats"))
        val chat = ChatModel(engine, store::folder, File(temporary.root, "answers"), settings, saved, scope).also { it.wake() }
        return BundlesModel(store, engine, settings, chat, scope)
    }

    @After fun stop() {
        scopes.forEach { it.cancel() }
        publisher.close()
    }

    private val demo = Publisher.bundle(mapOf("model.pte" to ByteArray(100_000) { it.toByte() }))

    private val manifestBytes = demo.getValue("manifest.json").size

    private fun until(model: BundlesModel = bundles, so: (BundlesState) -> Boolean): BundlesState =
        runBlocking { withTimeout(20_000) { model.state.first(so) } }

    private fun ask(model: BundlesModel = bundles): List<Offer> = runBlocking {
        model.ask(publisher.address)!!.join()
        model.state.value.offers
    }

    private fun BundlesState.offer(name: String) = offers.single { it.entry.name == name }

    @Test fun `a download that begins while the disk is read is shown as a download`() {
        publisher.publish("demo" to demo)
        val gate = Semaphore(0)
        publisher.halfway = { if (it == "demo/model.pte") gate.acquire() }
        engine.onBackends = {
            engine.onBackends = {}
            bundles.download(bundles.state.value.offers.single().entry)
            until { (it.offer("demo").state as? OfferState.Downloading)?.let { state -> state.doneBytes > manifestBytes + 40_000 } == true }
        }
        assertTrue("${ask()}", bundles.state.value.offer("demo").state is OfferState.Downloading)
        gate.release()
        until { it.offer("demo").state == OfferState.Installed }
    }

    @Test fun `what is downloaded is used where nothing is in use, and can be had again when it is deleted`() {
        publisher.publish("demo" to demo, "other" to Publisher.bundle(demo, "other"))
        val offers = ask()
        assertEquals(listOf("The demo", "The other"), offers.map { it.entry.title })
        assertEquals(listOf(OfferState.Available, OfferState.Available), offers.map { it.state })
        bundles.download(offers[0].entry)
        val done = until { it.offer("demo").state is OfferState.Installed && it.chosen == "demo" }
        assertEquals(listOf("demo"), done.installed!!.map { it.name })
        bundles.download(offers[1].entry)
        assertEquals("demo", until { it.offer("other").state is OfferState.Installed && it.installed!!.size == 2 }.chosen)
        runBlocking { bundles.delete("demo").join() }
        val after = bundles.state.value
        assertEquals(OfferState.Available to OfferState.Installed, after.offer("demo").state to after.offer("other").state)
        assertEquals(words(R.string.deleted, "demo"), after.message)
    }

    @Test(timeout = 60_000) fun `a download is paused, is still there in a new process, goes on, and is discarded`() {
        publisher.publish("demo" to demo)
        val gate = Semaphore(0)
        publisher.halfway = { if (it == "demo/model.pte") gate.acquire() }
        val entry = ask().single().entry
        bundles.download(entry)
        until { (it.offer("demo").state as? OfferState.Downloading)?.doneBytes == manifestBytes + 50_000L }
        bundles.download(entry) // once
        bundles.pause(entry)
        gate.release()
        val here = (until { it.offer("demo").state is OfferState.Paused }.offer("demo").state as OfferState.Paused).doneBytes
        assertTrue("$here", here >= manifestBytes + 50_000)
        while (preferences.kept["catalog"] != publisher.address) Thread.sleep(10) // settings are written a moment later
        val again = start()
        assertEquals(publisher.address, again.state.value.catalog)
        assertEquals(OfferState.Paused(here), ask(again).single().state)
        runBlocking { again.discard(entry).join() }
        assertEquals(OfferState.Available, again.state.value.offer("demo").state)
        publisher.halfway = {}
        again.download(entry)
        until(again) { it.offer("demo").state is OfferState.Installed }
    }

    @Test(timeout = 60_000) fun `a download that the system stopped goes on when its job starts again`() {
        publisher.publish("demo" to demo)
        val gate = Semaphore(0)
        publisher.halfway = { if (it == "demo/model.pte") gate.acquire() }
        val id = ask().single().entry.also(bundles::download).id
        until { (it.offer("demo").state as? OfferState.Downloading)?.doneBytes == manifestBytes + 50_000L }
        bundles.pause(id)
        publisher.halfway = {}
        publisher.requests.clear()
        gate.release()
        runBlocking { bundles.finish(id, publisher.address) }
        assertEquals(OfferState.Installed, bundles.state.value.offer("demo").state)
        val ranges = publisher.requests.filter { it.first == "demo/model.pte" }.map { it.second }
        assertTrue("$ranges", ranges.all { it != null })
    }

    @Test(timeout = 60_000) fun `a job that a passing failure ends is to be tried again, one that is refused or installed is not`() {
        publisher.publish("demo" to demo, "damaged" to Publisher.bundle(demo + ("damaged" to ByteArray(1))))
        val (id, damaged) = ask().map { it.entry.id }
        val again = start()
        runBlocking {
            publisher.statuses["catalog.json"] = ArrayDeque(listOf(503))
            assertFalse("no catalogue now", again.finish(id, publisher.address))
            publisher.statuses["catalog.json"] = ArrayDeque(listOf(404))
            assertTrue("no catalogue any more", again.finish(id, publisher.address))
            publisher.statuses["demo/model.pte"] = ArrayDeque(List(4) { 503 }) // a download asks again by itself
            assertFalse("no file now", again.finish(id, publisher.address))
            publisher.statuses["demo/model.pte"] = ArrayDeque(listOf(404))
            assertTrue("no file any more", again.finish(id, publisher.address))
            assertTrue("refused", again.finish(damaged, publisher.address))
            assertTrue("not published", again.finish("0".repeat(64), publisher.address))
            assertTrue("installed", again.finish(id, publisher.address))
        }
        assertEquals(OfferState.Installed, again.state.value.offer("demo").state)
    }

    @Test(timeout = 60_000) fun `a job that starts while the catalogue is requested has one row and one download`() {
        publisher.publish("demo" to demo)
        val id = ask().single().entry.id
        val gate = Semaphore(0)
        publisher.halfway = { if (it == "catalog.json") gate.acquire() }
        val again = start()
        publisher.requests.clear()
        again.ask(publisher.address)
        runBlocking {
            val job = launch { again.finish(id, publisher.address) }
            assertNull("it ended without a catalogue", withTimeoutOrNull(500) { job.join() })
            gate.release(2)
            job.join()
        }
        until(again) { it.offer("demo").state == OfferState.Installed }
        assertEquals(1, publisher.requests.count { it.first == "demo/model.pte" })
    }

    @Test(timeout = 60_000) fun `a running download keeps its row when another catalogue is shown, and its job resumes it`() {
        publisher.publish("demo" to demo)
        val gate = Semaphore(0)
        publisher.halfway = { if (it == "demo/model.pte") gate.acquire() }
        val entry = ask().single().entry.also(bundles::download)
        until { (it.offer("demo").state as? OfferState.Downloading)?.doneBytes == manifestBytes + 50_000L }
        Publisher().use { other ->
            other.publish("demo" to Publisher.bundle(demo, "other contents of the same name"))
            runBlocking { bundles.ask(other.address)!!.join() }
            val (shown, going) = bundles.state.value.offers
            assertEquals(OfferState.Available, shown.state)
            assertEquals(entry.id, going.entry.id)
            assertTrue("${going.state}", going.state is OfferState.Downloading)
            bundles.pause(entry)
            publisher.halfway = {}
            gate.release()
            until { it.offers[1].state is OfferState.Paused }
            assertEquals(OfferState.Available, bundles.state.value.offers[0].state)
            runBlocking { assertTrue(bundles.finish(entry.id, publisher.address)) }
            assertEquals(listOf(OfferState.Available, OfferState.Installed), bundles.state.value.offers.map { it.state })
            assertEquals("what is shown stays", other.address, bundles.state.value.catalog)
        }
    }

    @Test(timeout = 60_000) fun `a download that is paused before its first instruction can be started again`() {
        publisher.publish("demo" to demo)
        Executors.newSingleThreadExecutor().asCoroutineDispatcher().use { thread ->
            val model = start(thread)
            val entry = ask(model).single().entry
            val gate = CountDownLatch(1)
            thread.executor.execute(gate::await)
            model.download(entry)
            model.pause(entry)
            gate.countDown()
            until(model) { it.offer("demo").state is OfferState.Available }
            model.download(entry)
            until(model) { it.offer("demo").state is OfferState.Installed }
        }
    }

    @Test(timeout = 60_000) fun `a failed download shows its error in its row, a failed catalogue below the list`() {
        publisher.publish("demo" to demo, "damaged" to Publisher.bundle(demo + ("damaged" to ByteArray(1))), "npu" to demo) {
            if (it["name"] == JsonPrimitive("npu")) it.with("backend", "qnn") else it
        }
        val offers = ask()
        assertEquals(OfferState.Unsupported("this library has no backend qnn"), offers[2].state)
        bundles.download(offers[1].entry)
        val refused = until { it.offer("damaged").error != null }.offer("damaged")
        assertEquals(Sentence.Literal("model.pte is not the file that the manifest names."), refused.error)
        assertEquals(OfferState.Available, until { it.offer("damaged").state is OfferState.Available }.offer("damaged").state)
        publisher.statuses["demo/model.pte"] = ArrayDeque(listOf(404))
        bundles.download(offers[0].entry)
        val failed = until { it.offer("demo").state is OfferState.Paused && it.offer("demo").error != null }.offer("demo")
        assertTrue("${failed.error}", "404" in (failed.error as Sentence.Literal).text)

        runBlocking { bundles.ask("http://models.example")!!.join() }
        assertTrue("${bundles.state.value.message}", "https://" in (bundles.state.value.message as Sentence.Literal).text)
        assertEquals("what was there stays", 3, bundles.state.value.offers.size)
        publisher.publish()
        ask()
        assertEquals(words(R.string.catalog_empty), bundles.state.value.message)
    }

    @Test fun `an import of the same contents is the offer's too, and is used`() {
        publisher.publish("demo" to demo)
        ask()
        val zip = ByteArrayOutputStream().also { bytes ->
            ZipOutputStream(bytes).use { zip ->
                for ((name, content) in demo) {
                    zip.putNextEntry(ZipEntry(name))
                    zip.write(content)
                }
            }
        }.toByteArray()
        bundles.import { dev.streamfuse.ZipSource("mine.zip", null) { ByteArrayInputStream(zip) } }
        val done = until { it.importing == null && it.message != null }
        assertEquals(words(R.string.imported, "mine"), done.message)
        assertEquals("mine" to OfferState.Installed, done.chosen to done.offer("demo").state)
    }
}
