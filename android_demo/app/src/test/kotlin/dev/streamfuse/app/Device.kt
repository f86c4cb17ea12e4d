package dev.streamfuse.app

import android.app.Activity
import android.app.ActivityManager
import android.app.AlertDialog
import android.content.ComponentCallbacks2
import android.content.Intent
import android.graphics.Bitmap
import android.graphics.Canvas
import android.os.Bundle
import android.os.Looper
import android.view.MenuItem
import android.view.View
import android.view.ViewGroup
import android.widget.EditText
import android.widget.TextView
import dev.streamfuse.app.model.Field
import dev.streamfuse.app.model.OfferState
import dev.streamfuse.app.model.Phase
import dev.streamfuse.app.model.Settings
import dev.streamfuse.app.model.SettingsStore
import java.io.File
import java.nio.file.Files
import java.time.Duration
import kotlinx.coroutines.runBlocking
import org.junit.After
import org.junit.Assert.assertEquals
import org.junit.runner.RunWith
import org.robolectric.Robolectric
import org.robolectric.RobolectricTestRunner
import org.robolectric.RuntimeEnvironment
import org.robolectric.Shadows.shadowOf
import org.robolectric.android.controller.ActivityController
import org.robolectric.fakes.RoboMenuItem
import org.robolectric.shadows.ShadowAlertDialog
import org.robolectric.shadows.ShadowPopupMenu

/**
 * The whole app with the real library, on Robolectric's Android, used as a person uses it: by what is on the screen.
 *
 *     make android        # builds the native library, then runs these
 */
@RunWith(RobolectricTestRunner::class)
abstract class Device {
    protected val app: App get() = RuntimeEnvironment.getApplication() as App

    /** What the screens share; made where no screen has asked for it. */
    protected val parts: Parts get() = runBlocking { app.parts() }

    /** What processes had that the test has ended. */
    protected val endedParts = mutableListOf<Parts>()
    private val controllers = mutableListOf<ActivityController<*>>()

    @After fun turnOff() {
        for (controller in controllers) runCatching { controller.close() }
        idle()
        runBlocking { (endedParts + parts).forEach { it.close() } }
    }

    /**
     * A bundle of the repository's build folder in the app's own; [use]: it is the chosen one. The folder is the app's, so
     * that nothing the app does to it reaches the repository; the files are shared only where they cannot be changed.
     */
    protected fun install(bundle: String, use: Boolean = true, remembersAnswers: Boolean = false) {
        val folder = File(app.filesDir, "bundles/$bundle").apply { mkdirs() }
        for (file in built(bundle).listFiles()!!) {
            val here = File(folder, file.name)
            // Hard links, where the file system has them: deleting one leaves the other.
            runCatching { Files.createLink(here.toPath(), file.toPath()) }.onFailure { file.copyTo(here) }
        }
        // Before there are parts, which read these settings.
        val chosen = Settings(bundle = bundle, remembersAnswers = remembersAnswers)
        if (use) KeptPreferences(app).write(SettingsStore.kept(chosen))
    }

    protected fun <A : Activity> open(screen: Class<A>, intent: Intent? = null): ActivityController<A> =
        Robolectric.buildActivity(screen, intent).setup().also { controllers += it }.also { ready() }

    /** Lets a screen hear that the parts are there. */
    private fun ready() {
        parts
        settle()
    }

    /** As after the process had ended: nothing is left but files and what the screen had saved. */
    protected fun <A : Activity> endProcess(controller: ActivityController<A>, screen: Class<A>): ActivityController<A> {
        val state = Bundle()
        controller.saveInstanceState(state).pause().stop()
        until { File(app.filesDir, "chats").walk().any { it.name == "chat.json" } }
        runBlocking { parts.chat.leave().join() } // the one that stop began is done before it
        endedParts += parts
        app.replace(Parts(app))
        return Robolectric.buildActivity(screen).setup(state).also { controllers += it }.also { ready() }
    }

    /** The system asks for memory because it has little. */
    protected fun trimMemory() {
        val memory = ActivityManager.MemoryInfo().apply { lowMemory = true }
        shadowOf(app.getSystemService(ActivityManager::class.java)).setMemoryInfo(memory)
        app.onTrimMemory(ComponentCallbacks2.TRIM_MEMORY_BACKGROUND)
    }

    /** Types a text into the open dialog and turns the screen, whose new dialog has the text. */
    protected fun typeAndTurn(controller: ActivityController<*>, text: String) {
        ShadowAlertDialog.getLatestAlertDialog()!!.findViewById<EditText>(R.id.field)!!.setText(text)
        assertEquals(text, turn(controller).findViewById<EditText>(R.id.field)!!.text.toString())
    }

    /** Rotates the screen while a dialog is open; returns the new dialog, which must have the same message. */
    protected fun turn(controller: ActivityController<*>): AlertDialog {
        val before = ShadowAlertDialog.getLatestAlertDialog()!!
        RuntimeEnvironment.setQualifiers("+land")
        controller.configurationChange()
        until { ShadowAlertDialog.getLatestAlertDialog() !== before }
        val after = ShadowAlertDialog.getLatestAlertDialog()!!
        assertEquals(false to true, before.isShowing to after.isShowing)
        assertEquals(shadowOf(before).message, shadowOf(after).message)
        return after
    }

    /** Lets the main thread work until something is so. */
    protected fun until(seconds: Int = 60, so: () -> Boolean) {
        val end = System.nanoTime() + seconds * 1_000_000_000L
        while (true) {
            idle()
            if (so()) return settle()
            check(System.nanoTime() < end) { "nothing came of it in $seconds s; the screen: ${screenText()}" }
            Thread.sleep(5)
        }
    }

    /** A state that another thread sets reaches the screen a moment later. */
    private fun settle() = repeat(20) {
        Thread.sleep(5)
        idle()
    }

    /** Installs the bundle `demo`, asks it a question and returns the chat screen with its answer. */
    protected fun answeredChat(question: String, maxNewTokens: Int, showsDrafts: Boolean = false): ChatActivity {
        install("demo")
        parts.settings.set(Field.MAX_NEW_TOKENS, "$maxNewTokens")
        if (showsDrafts) parts.settings.setShowsDrafts(true)
        val screen = open(ChatActivity::class.java).get()
        until { parts.chat.state.value.phase == Phase.READY }
        screen.type(R.id.input, question)
        screen.pressSoon(R.id.send)
        until { parts.chat.state.value.run { phase == Phase.READY && turns.size == 2 } }
        idle()
        return screen
    }

    /** How much of the only offered bundle has arrived, from 0 to 1; 0 where it is not being downloaded. */
    protected fun downloadedShare(): Double = parts.bundles.state.value.offers.single().let { offer ->
        ((offer.state as? OfferState.Downloading)?.doneBytes ?: 0).toDouble() / offer.entry.bytes
    }

    /** Presses what can be pressed soon. */
    protected fun Activity.pressSoon(id: Int) {
        until { findViewById<View>(id)!!.run { isShown && isEnabled } }
        press(id)
    }

    protected fun idle() = shadowOf(Looper.getMainLooper()).idleFor(Duration.ofMillis(20))

    private fun screenText(): String = controllers.lastOrNull()?.get()?.let { screen ->
        screen.all().filterIsInstance<TextView>().filter { it.isShown }.joinToString(" | ") { it.text }
    }.orEmpty()

    /** A picture of the screen in build/android/screenshots. */
    protected fun picture(screen: Activity, name: String): File {
        idle()
        val view = screen.window.decorView
        view.jumpDrawablesToCurrentState() // not in the middle of a button's animation
        val bitmap = Bitmap.createBitmap(view.width, view.height, Bitmap.Config.ARGB_8888)!!
        view.draw(Canvas(bitmap))
        val file = File(root, "build/android/screenshots/$name.png")
        file.parentFile!!.mkdirs()
        file.outputStream().use { bitmap.compress(Bitmap.CompressFormat.PNG, 100, it) }
        return file
    }

    /** The screen that this one has opened. */
    protected fun startedFrom(screen: Activity): String? = shadowOf(screen).nextStartedActivity?.component?.className

    protected fun menuItem(id: Int): MenuItem = RoboMenuItem(id)

    protected fun built(bundle: String) = File(root, "build/$bundle")

    companion object {
        val root: File = File(System.getProperty("streamfuse.root")!!).canonicalFile

        /** A phone of middling size; without `night` it is day. */
        const val PHONE = "w392dp-h800dp-notnight-xhdpi"
        const val PHONE_NIGHT = "w392dp-h800dp-night-xhdpi"
        const val TABLET = "w1280dp-h800dp-land-notnight-hdpi"

        /** In Arabic, for which the app has no words: English words in a layout from right to left. */
        const val PHONE_RTL = "ar-ldrtl-w392dp-h800dp-notnight-xhdpi"
        const val TABLET_RTL = "ar-ldrtl-w1280dp-h800dp-land-notnight-hdpi"
    }
}

fun Activity.text(id: Int): TextView = findViewById<TextView>(id)!!

fun Activity.shown(id: Int): Boolean = findViewById<View>(id)!!.isShown

fun Activity.press(id: Int) {
    val view = findViewById<View>(id)!!
    check(view.isShown && view.isEnabled) { "${resources.getResourceEntryName(id)} cannot be pressed" }
    view.performClick()
}

fun Activity.type(id: Int, words: String) = findViewById<EditText>(id)!!.setText(words)

/** All views of the screen. */
fun Activity.all(): List<View> = window.decorView.all()

fun View.all(): List<View> =
    listOf(this) + if (this is ViewGroup) (0 until childCount).flatMap { getChildAt(it).all() } else emptyList()

/** The conversation as it was written, in turn the user's words and the model's. */
fun Activity.conversation(): List<String> = findViewById<ViewGroup>(R.id.turns)!!.let { turns ->
    (0 until turns.childCount).map { turns.getChildAt(it) }.map { turn ->
        turn.findViewById<TextView>(R.id.question)?.text?.toString() ?: turn.findViewById<AnswerView>(R.id.answer)!!.source
    }
}

/** Presses a button of the latest dialog. */
fun pressInDialog(button: Int) = ShadowAlertDialog.getLatestAlertDialog()!!.getButton(button).performClick()

/** Chooses from the latest menu that a button has opened. */
fun chooseFromMenu(item: Int) = shadowOf(ShadowPopupMenu.getLatestPopupMenu()!!).run {
    onMenuItemClickListener.onMenuItemClick(RoboMenuItem(item))
}
