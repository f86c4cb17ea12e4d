package dev.streamfuse.app

import android.app.Activity
import android.graphics.Color
import android.text.Editable
import android.text.TextWatcher
import android.view.View
import android.widget.EditText
import android.widget.TextView
import dev.streamfuse.app.model.Field
import dev.streamfuse.app.model.Phase
import java.io.File
import kotlin.math.pow
import org.junit.Assert.assertEquals
import org.junit.Assert.assertTrue
import org.junit.Test
import org.robolectric.RuntimeEnvironment
import org.robolectric.annotation.Config

/** For those who hear the screen, who need large text, who do not tell colours apart, and at night. */
@Config(qualifiers = Device.PHONE)
class AccessibilityTest : Device() {
    private val others = listOf(ChatsActivity::class.java, BundlesActivity::class.java, SettingsActivity::class.java, BenchmarkActivity::class.java)

    /** A chat with an answer of drafted and other words. */
    private fun chat() = answeredChat("Count from one to twenty in words, then do it again.", maxNewTokens = 48)

    private fun screens(): List<Activity> = listOf(chat()) + others.map { open(it).get() }

    private fun View.called(): String {
        val label = rootView.all().filterIsInstance<TextView>().firstOrNull { it.labelFor == id && id != View.NO_ID }?.text
        return (contentDescription ?: label ?: (this as? EditText)?.hint ?: (this as? TextView)?.text)?.toString().orEmpty()
    }

    @Test fun `every control has a name and is large enough to touch`() {
        for (screen in screens()) {
            val controls = screen.all().filter { it.isShown && it.isClickable && (it as? TextView)?.isTextSelectable != true || it is EditText }
            assertTrue(controls.size > 2)
            for (control in controls) {
                val where = "${screen.javaClass.simpleName}: ${control.javaClass.simpleName} '${control.called()}'"
                assertTrue("$where has no name", control.called().isNotBlank())
                val smallest = 48 * screen.resources.displayMetrics.density
                assertTrue("$where is ${control.width} x ${control.height}", control.width >= smallest && control.height >= smallest)
            }
        }
    }

    @Test fun `the screen reader hears of an answer when it begins and ends, not of each token`() {
        install("demo")
        parts.settings.set(Field.MAX_NEW_TOKENS, "40")
        val screen = open(ChatActivity::class.java).get()
        until { parts.chat.state.value.phase == Phase.READY }
        val announced = mutableListOf<String>()
        val note = screen.text(R.id.note)
        assertEquals(View.ACCESSIBILITY_LIVE_REGION_POLITE, note.accessibilityLiveRegion)
        note.addTextChangedListener(object : TextWatcher {
            override fun beforeTextChanged(text: CharSequence?, start: Int, count: Int, after: Int) = Unit

            override fun onTextChanged(text: CharSequence?, start: Int, before: Int, count: Int) = Unit

            override fun afterTextChanged(text: Editable) {
                announced += text.toString()
            }
        })
        screen.type(R.id.input, "Hello")
        screen.pressSoon(R.id.send)
        until { parts.chat.state.value.let { it.phase == Phase.READY && it.turns.size == 2 } }
        idle()
        assertTrue(announced.toString(), announced.size in 1..3 && !announced.last().endsWith("…"))
        for (view in screen.all().filter { it is AnswerView || it.id == R.id.chip }) {
            assertEquals(View.ACCESSIBILITY_LIVE_REGION_NONE, view.accessibilityLiveRegion)
        }
    }

    @Test fun `text of twice the size is cut nowhere`() {
        RuntimeEnvironment.setFontScale(2f)
        for (screen in screens()) {
            picture(screen, "large-${screen.javaClass.simpleName.removeSuffix("Activity").lowercase()}")
            val width = screen.window.decorView.width
            for (view in screen.all().filterIsInstance<TextView>().filter { it.isShown && it.text.isNotEmpty() }) {
                val where = "${screen.javaClass.simpleName}: '${view.text}'"
                val layout = view.layout!!
                assertTrue("$where is cut", (0 until layout.lineCount).all { layout.getEllipsisCount(it) == 0 })
                if (view.maxLines > 1 && view !is EditText) {
                    assertTrue("$where is too low", layout.height <= view.height - view.totalPaddingTop - view.totalPaddingBottom + 1)
                }
                val lines = (0 until layout.lineCount).maxOf { layout.getLineMax(it) }
                val scrolls = generateSequence(view.parent) { it.parent }.any { it is android.widget.HorizontalScrollView }
                if (!scrolls) assertTrue("$where is too wide", lines <= view.width - view.totalPaddingLeft - view.totalPaddingRight + 1)
                val place = IntArray(2).also(view::getLocationInWindow)
                if (!scrolls) assertTrue("$where leaves the screen", place[0] >= 0 && place[0] + view.width <= width)
            }
            val pane = screen.findViewById(R.id.scroll) ?: screen.findViewById<View>(R.id.chat_list)!!
            assertTrue("${screen.javaClass.simpleName} leaves no room to read", pane.height > 120 * screen.resources.displayMetrics.density)
        }
    }

    private fun luminance(color: Int): Double {
        fun part(shift: Int): Double = ((color shr shift and 255) / 255.0).let { if (it <= 0.04045) it / 12.92 else ((it + 0.055) / 1.055).pow(2.4) }
        return 0.2126 * part(16) + 0.7152 * part(8) + 0.0722 * part(0)
    }

    private fun contrast(first: Int, second: Int): Double {
        val (low, high) = listOf(luminance(first), luminance(second)).sorted()
        return (high + 0.05) / (low + 0.05)
    }

    /** What [color] with its transparency makes of [ground]. */
    private fun over(ground: Int, color: Int): Int {
        val alpha = (color ushr 24) / 255.0
        fun part(shift: Int) = ((color shr shift and 255) * alpha + (ground shr shift and 255) * (1 - alpha)).toInt() shl shift
        return part(16) or part(8) or part(0)
    }

    private fun assertReadable(colors: Map<String, Int>) {
        fun color(name: String) = colors.getValue(name)
        val grounds = listOf("background", "surface")
        val pairs = listOf("text", "text_secondary").flatMap { text -> grounds.map { text to it } } +
            listOf("accent", "error").map { it to "background" } + listOf("text" to "question", "on_accent" to "accent")
        for ((text, ground) in pairs) {
            val ratio = contrast(color(text), color(ground))
            assertTrue("$text on $ground: $ratio", ratio >= 4.5)
        }
        for (mark in Mark.entries) {
            val tint = color(app.resources.getResourceEntryName(mark.color)) and 0xFFFFFF or (Mark.TINT_ALPHA shl 24)
            val ratio = contrast(color("text"), over(color("background"), tint))
            assertTrue("text on the tint of $mark: $ratio", ratio >= 4.5)
        }
        assertTrue("lines of fields", contrast(color("outline"), color("background")) >= 3)
    }

    /** The app's own colours, which hold where the system has none. */
    private fun own(folder: String): Map<String, Int> =
        Regex("<color name=\"(\\w+)\">(#\\w+)</color>").findAll(File(root, "android_demo/app/src/main/res/$folder/colors.xml").readText())
            .associate { it.groupValues[1] to Color.parseColor(it.groupValues[2]) }

    /** Those that the system takes from the wallpaper. */
    private fun system(): Map<String, Int> = R.color::class.java.fields.associate { it.name to app.getColor(it.getInt(null)) }

    @Test fun `colours are readable by day`() {
        assertReadable(own("values"))
        assertReadable(system())
    }

    @Test @Config(qualifiers = Device.PHONE_NIGHT) fun `colours are readable at night`() {
        assertReadable(own("values") + own("values-night"))
        assertReadable(system())
    }
}
