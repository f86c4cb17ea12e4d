package dev.streamfuse.app

import android.os.StrictMode
import android.view.KeyEvent
import android.widget.SeekBar
import dalvik.system.BlockGuard
import dev.streamfuse.app.model.ChatRecord
import dev.streamfuse.app.model.Field
import dev.streamfuse.app.model.Phase
import dev.streamfuse.app.model.SavedChats
import dev.streamfuse.testing.Publisher
import java.io.File
import java.security.Permission
import java.util.concurrent.ConcurrentLinkedQueue
import org.junit.After
import org.junit.Assert.assertEquals
import org.junit.Assert.assertThrows
import org.junit.Assert.assertTrue
import org.junit.Test
import org.robolectric.annotation.Config

/**
 * No file is read, written, listed or deleted on the main thread, or StrictMode ends the test (`penaltyDeath`). On a
 * device the system's file functions ask its policy; here those of the virtual machine do, through a security manager.
 */
@Suppress("DEPRECATION", "removal")
@Config(qualifiers = Device.PHONE)
class MainThreadTest : Device() {
    private val main = Thread.currentThread()
    private val found = ConcurrentLinkedQueue<String>()
    private val allowed = StrictMode.getThreadPolicy()

    private inner class Watch : SecurityManager() {
        init {
            look("classes of this test, which are not loaded while files are watched") {}
        }

        override fun checkPermission(permission: Permission) = Unit

        override fun checkPermission(permission: Permission, context: Any) = Unit

        override fun checkRead(file: String) = look("reads $file") { onReadFromDisk() }

        override fun checkWrite(file: String) = look("writes $file") { onWriteToDisk() }

        override fun checkDelete(file: String) = look("deletes $file") { onWriteToDisk() }
    }

    /** The app's own frame that uses a file is not the test's, and no class, layout or picture is loaded for it. */
    private fun look(what: String, ask: BlockGuard.Policy.() -> Unit) {
        if (Thread.currentThread() !== main) return
        val frames = Throwable().stackTrace.map { it.className }.dropWhile { it.startsWith(javaClass.name) }
        val own = frames.indexOfFirst { it.startsWith("dev.streamfuse.") }
        if (own < 0 || frames[own].startsWith(Device::class.java.name) || frames[own].startsWith(javaClass.name)) return
        if (frames.take(own).any { frame -> LOADING.any { it in frame } }) return
        found += "${frames[own]} $what"
        BlockGuard.getThreadPolicy().ask()
    }

    private fun watch() {
        StrictMode.setThreadPolicy(mainThreadPolicy().penaltyDeath().build())
        System.setSecurityManager(Watch())
    }

    @After fun stopWatching() {
        System.setSecurityManager(null)
        StrictMode.setThreadPolicy(allowed)
    }

    @Test fun `a file that the main thread uses ends the app`() {
        val chats = SavedChats(File(app.filesDir, "saved"))
        watch()
        val ended = assertThrows(RuntimeException::class.java) { chats.write("id", ChatRecord("demo", null, emptyList())) }
        stopWatching()
        assertTrue("$ended", "StrictMode" in ended.message.orEmpty())
        assertEquals("$found", 1, found.size)
    }

    @Test fun `a debug build logs what uses a file on the main thread`() {
        assertEquals("${mainThreadPolicy().penaltyLog().build()}", "${StrictMode.getThreadPolicy()}")
    }

    @Test fun `no screen uses a file on the main thread, from the first one of a process to the last`() {
        install("demo")
        install("sql", use = false)
        File(app.filesDir, "bundles/.unfinished1/half").mkdirs()
        val publisher = Publisher().apply { publish("tiny" to Publisher.bundle(emptyMap())) }
        watch()
        val controller = open(ChatActivity::class.java)
        until { parts.chat.state.value.phase == Phase.READY }
        parts.settings.set(Field.MAX_NEW_TOKENS, "8")
        controller.get().type(R.id.input, "Hello")
        controller.get().pressSoon(R.id.send)
        until { parts.chat.state.value.let { it.phase == Phase.READY && it.turns.size == 2 } }
        val settings = open(SettingsActivity::class.java).get()
        settings.findViewById<SeekBar>(R.id.slider)!!.run { onKeyDown(KeyEvent.KEYCODE_DPAD_RIGHT, KeyEvent(KeyEvent.ACTION_DOWN, KeyEvent.KEYCODE_DPAD_RIGHT)) }
        settings.type(R.id.system_prompt, "Be brief.")
        val chats = open(ChatsActivity::class.java).get()
        chats.type(R.id.search, "Hello")
        val (chat) = parts.chats.state.value.chats
        parts.chats.rename(chat.id, "Greetings")
        parts.chats.delete(chat.id)
        until { chats.shown(R.id.undo) }
        chats.press(R.id.undo)
        val bundles = open(BundlesActivity::class.java).get()
        until { bundles.all().any { it.contentDescription?.startsWith("Use sql") == true } }
        bundles.all().first { it.contentDescription?.startsWith("Use sql") == true }.performClick()
        until { parts.chat.state.value.let { it.bundle == "sql" && it.phase == Phase.READY } }
        bundles.type(R.id.catalog, publisher.address)
        bundles.press(R.id.catalog_show)
        until { bundles.all().any { it.id == R.id.download && it.isShown } }
        bundles.press(R.id.download)
        until { parts.bundles.state.value.offers.single().error != null } // it is no bundle
        open(BenchmarkActivity::class.java)
        parts.leave()
        trimMemory()
        until { parts.chat.state.value.phase == Phase.LOADING }
        parts.back()
        until { parts.chat.state.value.phase == Phase.READY }
        stopWatching()
        publisher.close()
        assertEquals(emptyList<String>(), found.distinct())
    }

    private companion object {
        /** Frames below which the system loads what belongs to the app. */
        val LOADING = listOf("ClassLoader", "jdk.internal.loader", "android.content.res.", "android.graphics.", "org.robolectric.")
    }
}
