package dev.streamfuse.app

import android.content.ComponentCallbacks2
import android.view.KeyEvent
import android.widget.SeekBar
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
import org.junit.Assert.assertTrue
import org.junit.Test
import org.robolectric.annotation.Config

/**
 * No file is read, written, listed or deleted on the main thread. On a device StrictMode would report it; here the
 * security manager of the virtual machine does, which is called for every file operation.
 */
@Suppress("DEPRECATION", "removal")
@Config(qualifiers = Device.PHONE)
class MainThreadTest : Device() {
    private val main = Thread.currentThread()
    private val found = ConcurrentLinkedQueue<String>()

    private inner class Watch : SecurityManager() {
        init {
            look("classes of this test, which are not loaded while files are watched")
        }

        override fun checkPermission(permission: Permission) = Unit

        override fun checkPermission(permission: Permission, context: Any) = Unit

        override fun checkRead(file: String) = look("reads $file")

        override fun checkWrite(file: String) = look("writes $file")

        override fun checkDelete(file: String) = look("deletes $file")
    }

    /** The app's own frame that uses a file is not the test's, and no class, layout or picture is loaded for it. */
    private fun look(what: String) {
        if (Thread.currentThread() !== main) return
        val frames = Throwable().stackTrace.map { it.className }.dropWhile { it.startsWith(javaClass.name) }
        val own = frames.indexOfFirst { it.startsWith("dev.streamfuse.") }
        if (own < 0 || frames[own].startsWith(Device::class.java.name) || frames[own].startsWith(javaClass.name)) return
        if (frames.take(own).none { frame -> LOADING.any { it in frame } }) found += "${frames[own]} $what"
    }

    @After fun stopWatching() = System.setSecurityManager(null)

    @Test fun `a file that the main thread uses is found`() {
        System.setSecurityManager(Watch())
        SavedChats(File(app.filesDir, "saved")).write("id", ChatRecord("demo", null, emptyList()))
        System.setSecurityManager(null)
        assertTrue("$found", found.any { "writes" in it } && found.any { "reads" in it })
    }

    @Test fun `no screen uses a file on the main thread, from the first one of a process to the last`() {
        install("demo")
        install("sql", use = false)
        File(app.filesDir, "bundles/.unfinished1/half").mkdirs()
        val publisher = Publisher().apply { publish("tiny" to Publisher.bundle(emptyMap())) }
        System.setSecurityManager(Watch())
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
        app.onTrimMemory(ComponentCallbacks2.TRIM_MEMORY_BACKGROUND)
        until { parts.chat.state.value.phase == Phase.LOADING }
        parts.back()
        until { parts.chat.state.value.phase == Phase.READY }
        System.setSecurityManager(null)
        publisher.close()
        assertEquals(emptyList<String>(), found.distinct())
    }

    private companion object {
        /** Frames below which the system loads what belongs to the app. */
        val LOADING = listOf("ClassLoader", "jdk.internal.loader", "android.content.res.", "android.graphics.", "org.robolectric.")
    }
}
