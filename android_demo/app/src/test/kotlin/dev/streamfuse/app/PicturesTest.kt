package dev.streamfuse.app

import android.view.View
import android.widget.ListView
import dev.streamfuse.app.model.Field
import dev.streamfuse.app.model.Phase
import org.junit.Assert.assertEquals
import org.junit.Assert.assertTrue
import org.junit.Test
import org.robolectric.RuntimeEnvironment
import org.robolectric.annotation.Config

/** Pictures of the chat in build/android/screenshots, and that it fits its window; other tests make those of other screens. */
class PicturesTest : Device() {
    private fun chat(name: String): ChatActivity {
        install("demo")
        parts.settings.set(Field.MAX_NEW_TOKENS, "400")
        val screen = open(ChatActivity::class.java).get()
        until { parts.chat.state.value.phase == Phase.READY }
        picture(screen, "chat-empty-$name")
        return screen
    }

    private fun ChatActivity.ask(question: String) {
        type(R.id.input, question)
        pressSoon(R.id.send)
        until { parts.chat.state.value.run { phase == Phase.READY && turns.isNotEmpty() } }
        idle()
    }

    /** Asks, and waits until some lines of the answer are there. */
    private fun ChatActivity.beginAsking(question: String) {
        type(R.id.input, question)
        pressSoon(R.id.send)
        until { parts.chat.state.value.run { (live?.tokens ?: 0) >= 60 || phase == Phase.READY && turns.isNotEmpty() } }
        idle()
    }

    private fun streaming(name: String) {
        val screen = chat(name)
        parts.settings.setShowsDrafts(true)
        screen.beginAsking("Why does it rain?")
        assertTrue(picture(screen, "chat-drafts-$name").length() > 10_000)
    }

    private fun answered(name: String) {
        val screen = chat(name)
        screen.ask("Write a Python function that reverses a list.")
        assertTrue(picture(screen, "chat-$name").length() > 10_000)
    }

    @Test @Config(qualifiers = Device.PHONE) fun `by day`() = answered("light")

    @Test @Config(qualifiers = Device.PHONE_NIGHT) fun `at night, with drafted words tinted`() = streaming("dark")

    @Test @Config(qualifiers = Device.PHONE) fun `with text of twice the size`() {
        RuntimeEnvironment.setFontScale(2f)
        streaming("large-text")
    }

    @Test @Config(qualifiers = Device.TABLET) fun `a tablet has the chats beside the conversation, whose lines are not too long`() {
        val screen = chat("tablet")
        screen.ask("Write a Python function that reverses a list.")
        screen.onOptionsItemSelected(menuItem(R.id.new_chat))
        until { screen.conversation().isEmpty() }
        screen.beginAsking("Why does it rain?")
        picture(screen, "chat-tablet")
        until { parts.chat.state.value.phase == Phase.READY }
        assertEquals(2, screen.findViewById<ListView>(R.id.chat_list)!!.childCount)
        val answer = screen.findViewById<View>(R.id.answer)!!
        assertTrue("${answer.width}", answer.width <= 720 * screen.resources.displayMetrics.density)
    }

    private fun empty(name: String) {
        val screen = open(ChatActivity::class.java).get()
        until { screen.shown(R.id.choose_bundle) }
        picture(screen, "chat-no-bundle-$name")
    }

    @Test @Config(qualifiers = Device.PHONE) fun `without a bundle by day`() = empty("light")

    @Test @Config(qualifiers = Device.PHONE_NIGHT) fun `without a bundle at night`() = empty("dark")
}
