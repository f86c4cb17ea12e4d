package dev.streamfuse.app

import android.app.Activity
import android.app.AlertDialog
import android.content.Intent
import android.net.Uri
import android.provider.DocumentsContract
import android.widget.RadioButton
import dev.streamfuse.app.model.Phase
import dev.streamfuse.testing.Publisher
import java.io.File
import java.util.concurrent.CountDownLatch
import java.util.zip.Deflater
import java.util.zip.ZipEntry
import java.util.zip.ZipOutputStream
import org.junit.Assert.assertEquals
import org.junit.Assert.assertFalse
import org.junit.Assert.assertTrue
import org.junit.Before
import org.junit.Rule
import org.junit.Test
import org.junit.rules.TemporaryFolder
import org.robolectric.Robolectric
import org.robolectric.Shadows.shadowOf
import org.robolectric.annotation.Config
import org.robolectric.shadows.ShadowAlertDialog

/** Bundles come in through the system's picker, are checked by the library, and only then are there. */
@Config(qualifiers = Device.PHONE)
class BundlesScreenTest : Device() {
    @get:Rule val temporary = TemporaryFolder()

    @Before fun offerDocuments() {
        FakeDocuments.root = temporary.root
        Robolectric.setupContentProvider(FakeDocuments::class.java, FakeDocuments.AUTHORITY)
    }

    private val bundles get() = File(app.filesDir, "bundles").list().orEmpty().toList()

    /** As the app shows the size of the demo bundle. */
    private val demoSize get() = app.sizeOf(built("demo").listFiles()!!.sumOf { it.length() })

    private fun openBundles(): BundlesActivity = open(BundlesActivity::class.java).get()

    /** As if the person had chosen [uri] in the picker that the button opens. */
    private fun BundlesActivity.pick(button: Int, action: String, uri: Uri) {
        press(button)
        val asked = shadowOf(this).nextStartedActivityForResult.intent
        assertEquals(action, asked.action)
        shadowOf(this).receiveResult(asked, Activity.RESULT_OK, Intent().setData(uri))
    }

    private fun BundlesActivity.pickZip(name: String) =
        pick(R.id.import_zip, Intent.ACTION_OPEN_DOCUMENT, DocumentsContract.buildDocumentUri(FakeDocuments.AUTHORITY, name))

    private fun BundlesActivity.pickFolder(name: String) =
        pick(R.id.import_folder, Intent.ACTION_OPEN_DOCUMENT_TREE, DocumentsContract.buildTreeDocumentUri(FakeDocuments.AUTHORITY, name))

    private fun BundlesActivity.message(): String {
        until { shown(R.id.message) && !shown(R.id.importing) }
        return text(R.id.message).text.toString()
    }

    private fun zip(name: String, fill: (ZipOutputStream) -> Unit) =
        ZipOutputStream(temporary.newFile(name).outputStream()).use { it.apply { setLevel(Deflater.NO_COMPRESSION) }.let(fill) }

    private fun ZipOutputStream.add(name: String, file: File) {
        putNextEntry(ZipEntry(name))
        file.inputStream().use { it.copyTo(this) }
    }

    /** A folder with the files of the demo bundle, but [changed]. */
    private fun folder(name: String, changed: (File) -> Unit): File = temporary.newFolder(name).also { folder ->
        built("demo").listFiles()!!.forEach { it.copyTo(File(folder, it.name)) }
        changed(folder)
    }

    @Test fun `a zip of a bundle is imported and used at once`() {
        zip("my demo.zip") { zip -> built("demo").listFiles()!!.forEach { zip.add("demo/${it.name}", it) } }
        val screen = openBundles()
        until { screen.shown(R.id.none) }
        screen.pickZip("my demo.zip")
        assertEquals("my demo is checked and in use.", screen.message())
        assertEquals(listOf("my demo"), bundles)
        assertFalse(screen.shown(R.id.none))
        assertTrue((screen.findViewById(R.id.use) as RadioButton).isChecked)
        assertEquals(Phase.READY, parts.chat.state.value.phase)
        assertEquals("my demo", parts.chat.state.value.bundle)
    }

    @Test fun `a folder is imported, its progress is shown, and cancel leaves nothing`() {
        folder("demo") {}
        val screen = openBundles()
        FakeDocuments.slow = true
        screen.pickFolder("demo")
        until { screen.shown(R.id.importing) && screen.text(R.id.progress_text).text.matches(Regex("Copying: .* of $demoSize")) }
        picture(screen, "import-light")
        screen.press(R.id.cancel)
        FakeDocuments.slow = false
        assertEquals("The import was cancelled; nothing was kept.", screen.message())
        until { bundles.isEmpty() }
        screen.pickFolder("demo")
        assertEquals("demo is checked and in use.", screen.message())
        assertEquals(listOf("demo"), bundles)
    }

    @Test fun `the size of a folder is unknown if the size of a file is`() {
        folder("demo") {}
        val tree = DocumentsContract.buildTreeDocumentUri(FakeDocuments.AUTHORITY, "demo")
        for (name in listOf(null, "model.pte")) {
            FakeDocuments.sizeless = name
            val source = TreeSource(app.contentResolver, tree)
            source.forEachFile { _, content -> content.close() }
            assertEquals(name == null, source.totalBytes != null)
        }
        FakeDocuments.sizeless = null
    }

    @Test fun `an import goes on without its screen, with a grant of the app's own that it gives back`() {
        folder("demo") {}
        val controller = open(BundlesActivity::class.java)
        FakeDocuments.slow = true
        controller.get().pickFolder("demo")
        until { parts.bundles.state.value.importing != null }
        controller.pause().stop().destroy()
        val tree = DocumentsContract.buildTreeDocumentUri(FakeDocuments.AUTHORITY, "demo")
        assertEquals(listOf(tree), app.contentResolver.persistedUriPermissions.map { it.uri })
        FakeDocuments.slow = false
        until { parts.bundles.state.value.importing == null }
        until { app.contentResolver.persistedUriPermissions.isEmpty() }
        assertEquals(listOf("demo"), bundles)
    }

    @Test fun `a grant that is left of a process that ended during an import is given back`() {
        val tree = DocumentsContract.buildTreeDocumentUri(FakeDocuments.AUTHORITY, "demo")
        app.contentResolver.takePersistableUriPermission(tree, Intent.FLAG_GRANT_READ_URI_PERMISSION)
        openBundles()
        assertEquals(emptyList<Any>(), app.contentResolver.persistedUriPermissions)
    }

    @Test fun `a zip that leads out of the folder is refused`() {
        zip("evil.zip") { zip ->
            zip.add("manifest.json", File(built("demo"), "manifest.json"))
            zip.add("../../evil", File(built("demo"), "manifest.json"))
        }
        val screen = openBundles()
        screen.pickZip("evil.zip")
        assertTrue(screen.message(), screen.message().contains("../../evil"))
        assertEquals(emptyList<String>(), bundles)
        assertTrue(app.dataDir.walk().none { it.name == "evil" })
    }

    @Test fun `a damaged bundle is refused with the library's sentence, and the one in use stays`() {
        install("demo")
        folder("damaged") { folder -> File(folder, "tokenizer.json").run { writeText(readText().replaceFirst("a", "b")) } }
        val screen = openBundles()
        screen.pickFolder("damaged")
        assertTrue(screen.message(), screen.message().contains("tokenizer.json"))
        assertEquals(listOf("demo"), bundles)
        assertEquals("demo", parts.settings.bundle)
    }

    @Test fun `a person chooses another bundle, and deletes the first after a question`() {
        install("demo")
        install("sql", use = false)
        val controller = open(BundlesActivity::class.java)
        val screen = controller.get()
        picture(screen, "bundles-light")
        until { parts.chat.state.value.phase == Phase.READY }
        (screen.all().first { it.contentDescription?.startsWith("Use sql") == true }).performClick()
        until { parts.chat.state.value.bundle == "sql" && parts.chat.state.value.phase == Phase.READY }
        until { screen.all().any { it.contentDescription?.startsWith("sql") == true } }
        screen.all().first { it.contentDescription == "Delete demo" }.performClick()
        val question = ShadowAlertDialog.getLatestAlertDialog()!!
        assertEquals("Delete the bundle demo and its chat from this device?", shadowOf(question).message)
        turn(controller).getButton(AlertDialog.BUTTON_POSITIVE).performClick()
        until { controller.get().text(R.id.message).text.toString() == "demo is deleted." }
        assertEquals(listOf("sql"), bundles)
    }

    @Test fun `a published bundle is shown with its size and licence, downloaded, and answers`() {
        Publisher().use { publisher ->
            publisher.publish("demo" to Publisher.contentOf(built("demo").canonicalFile))
            val gate = CountDownLatch(1)
            publisher.halfway = { if (it == "demo/model.pte") gate.await() }
            val screen = openBundles()
            screen.type(R.id.catalog, publisher.address)
            screen.press(R.id.catalog_show)
            until { screen.all().any { it.id == R.id.download && it.isShown } }
            assertTrue(demoSize, demoSize.matches(Regex("[0-9]+ MB")))
            assertEquals("$demoSize · licence apache-2.0 · context of 1024 tokens", screen.text(R.id.facts).text.toString())
            screen.press(R.id.download)
            until { downloadedShare() > 1 / 3.0 }
            val state = screen.text(R.id.offer_state).text.toString()
            assertTrue(state, state.matches(Regex("[0-9]+ MB of $demoSize")))
            picture(screen, "download-light")
            gate.countDown()
            until { screen.text(R.id.offer_state).text.toString() == "On this device" }
            assertFalse(screen.shown(R.id.download))
            assertEquals(listOf("demo"), bundles)
            until { parts.chat.state.value.let { it.bundle == "demo" && it.phase == Phase.READY } }
        }
    }

    @Test @Config(qualifiers = Device.PHONE_NIGHT) fun `at night`() {
        install("demo")
        install("e2e", use = false)
        picture(openBundles(), "bundles-dark")
    }
}
