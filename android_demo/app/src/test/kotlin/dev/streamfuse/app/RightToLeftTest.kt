package dev.streamfuse.app

import android.app.Activity
import android.view.View
import android.widget.ListView
import org.junit.Assert.assertEquals
import org.junit.Assert.assertTrue
import org.junit.Test
import org.robolectric.annotation.Config

/** The chat in a layout from right to left: what is first is on the right. Pictures in build/android/screenshots. */
@Config(qualifiers = Device.PHONE_RTL)
class RightToLeftTest : Device() {
    private fun Activity.place(id: Int): IntRange = findViewById<View>(id)!!.run {
        val place = IntArray(2).also(::getLocationInWindow)
        place[0] until place[0] + width
    }

    private infix fun IntRange.isLeftOf(other: IntRange) = assertTrue("$this, $other", last < other.first)

    private fun chat() = answeredChat("Write a Python function that reverses a list.", maxNewTokens = 120)

    @Test fun `a chat has its button, its question and its answer on the other side`() {
        val screen = chat()
        assertEquals(View.LAYOUT_DIRECTION_RTL, screen.window.decorView.layoutDirection)
        picture(screen, "chat-rtl")
        screen.place(R.id.send) isLeftOf screen.place(R.id.input)
        val width = screen.window.decorView.width
        val code = screen.findViewById<View>(R.id.code)!!
        assertEquals(View.LAYOUT_DIRECTION_LTR, (code.parent as View).layoutDirection)
        assertTrue("${screen.place(R.id.question)}", screen.place(R.id.question).first < width - screen.place(R.id.question).last)
    }

    @Test fun `drafted words are tinted where they are`() {
        val question = "Repeat in Arabic and in English: \u0627\u0644\u0633\u0645\u0627\u0621 is the sky."
        picture(answeredChat(question, maxNewTokens = 80, showsDrafts = true), "chat-drafts-rtl")
    }

    @Test @Config(qualifiers = Device.TABLET_RTL) fun `a tablet has the chats on the right`() {
        val screen = chat()
        picture(screen, "chat-tablet-rtl")
        screen.place(R.id.input) isLeftOf screen.place(R.id.chat_list)
        assertEquals(1, screen.findViewById<ListView>(R.id.chat_list)!!.childCount)
    }
}
