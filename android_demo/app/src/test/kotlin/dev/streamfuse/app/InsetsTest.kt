package dev.streamfuse.app

import android.app.Activity
import android.graphics.Insets
import android.graphics.Rect
import android.view.View
import android.view.WindowInsets
import android.view.WindowInsets.Type
import android.widget.EditText
import android.widget.ScrollView
import android.widget.TextView
import org.junit.Assert.assertEquals
import org.junit.Assert.assertTrue
import org.junit.Test
import org.robolectric.annotation.Config

/** Windows are drawn behind the system's bars: what is read or touched is clear of them, of cutouts and of the keyboard. */
@Config(qualifiers = Device.PHONE)
class InsetsTest : Device() {
    private val bars = mapOf(Type.statusBars() to Insets.of(0, STATUS, 0, 0), Type.navigationBars() to Insets.of(0, 0, 0, NAVIGATION))
    private val cutout = Type.displayCutout() to Insets.of(CUTOUT, 0, 0, 0)
    private val keyboard = Type.ime() to Insets.of(0, 0, 0, KEYBOARD)

    private fun Activity.inset(insets: Map<Int, Insets>) {
        val builder = WindowInsets.Builder()
        for ((type, sides) in insets) builder.setInsets(type, sides)
        window.decorView.dispatchApplyWindowInsets(builder.build())
        idle()
    }

    private fun View.place(): Rect = IntArray(2).also(::getLocationInWindow).let { (x, y) -> Rect(x, y, x + width, y + height) }

    /** What can be read or pressed, without what is scrolled out of sight. */
    private fun Activity.inSight(): List<View> = all().filter { view ->
        (view is TextView || view.isClickable) && view.isShown && view.getGlobalVisibleRect(Rect())
    }

    /** What is [inSight] outside these margins. */
    private fun Activity.behind(left: Int = 0, top: Int = 0, bottom: Int = 0): List<String> {
        val clear = Rect(left, top, window.decorView.width, window.decorView.height - bottom)
        return inSight().associateWith { Rect().apply(it::getGlobalVisibleRect) }
            .filterNot { (_, seen) -> clear.contains(seen) }.map { (view, seen) -> "${view.javaClass.simpleName} $seen of $clear" }
    }

    private fun screens(): List<Activity> {
        val chat = answeredChat("Count from one to twenty in words, then do it again.", maxNewTokens = 48)
        val others = listOf(ChatsActivity::class.java, BundlesActivity::class.java, SettingsActivity::class.java, BenchmarkActivity::class.java)
        return listOf(chat) + others.map { open(it).get() }
    }

    @Test fun `nothing is behind a bar at the upper end of a screen, and nothing at the lower end once it is scrolled`() {
        for (screen in screens()) {
            screen.inset(bars)
            val name = screen.javaClass.simpleName
            val title = screen.findViewById<View>(R.id.bar)!!.place()
            assertEquals(name, STATUS, title.top)
            val list = screen.findViewById<ScrollView>(R.id.scroll)
            list?.scrollTo(0, Int.MAX_VALUE / 2)
            idle()
            val last = screen.inSight().maxOf { it.place().bottom }
            val height = screen.window.decorView.height
            assertTrue("$name: $last of $height", last <= height - NAVIGATION)
            picture(screen, "insets-${name.removeSuffix("Activity").lowercase()}")
            if (list == null || screen is ChatActivity) continue
            assertEquals("$name continues behind the bar", height, list.place().bottom)
        }
    }

    @Test fun `a keyboard covers no field, and what was behind it can be scrolled to`() {
        for (screen in screens()) {
            val field = screen.all().firstOrNull { it is EditText && it.isShown } ?: continue
            field.requestFocus()
            screen.inset(bars + keyboard)
            val name = screen.javaClass.simpleName
            val lower = screen.window.decorView.height - KEYBOARD
            val list = screen.findViewById<ScrollView>(R.id.scroll)
            if (list != null) assertTrue("$name: ${list.place()}", list.place().bottom <= lower)
            field.requestRectangleOnScreen(Rect(0, 0, field.width, field.height), true)
            idle()
            assertTrue("$name: ${field.place()}, $lower", field.place().bottom <= lower)
            screen.inset(bars)
            val below = list?.takeIf { screen !is ChatActivity } ?: screen.findViewById<View>(android.R.id.content)!!
            assertEquals("$name is as before", screen.window.decorView.height, below.place().bottom)
        }
    }

    @Test @Config(qualifiers = "w800dp-h392dp-land-notnight-xhdpi") fun `a cutout at the side covers nothing`() {
        for (screen in screens()) {
            screen.inset(bars + cutout)
            assertEquals(screen.javaClass.simpleName, emptyList<String>(), screen.behind(left = CUTOUT, top = STATUS))
        }
    }

    @Test @Config(qualifiers = Device.TABLET) fun `nor do bars cover the list beside the conversation`() {
        val screen = answeredChat("Hello", maxNewTokens = 8)
        screen.inset(bars)
        assertEquals(emptyList<String>(), screen.behind(top = STATUS, bottom = NAVIGATION))
    }

    private companion object {
        // Pixels.
        const val STATUS = 48
        const val NAVIGATION = 96
        const val CUTOUT = 80
        const val KEYBOARD = 600
    }
}
