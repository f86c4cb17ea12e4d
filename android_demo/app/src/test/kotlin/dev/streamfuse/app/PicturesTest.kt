package dev.streamfuse.app

import dev.streamfuse.app.model.Field
import dev.streamfuse.app.model.Phase
import org.junit.Assert.assertTrue
import org.junit.Test
import org.robolectric.annotation.Config

/** Pictures of the chat while it streams, in build/android/screenshots; other tests make those of other screens. */
class PicturesTest : Device() {
    private fun streaming(name: String) {
        install("demo")
        parts.settings.set(Field.MAX_NEW_TOKENS, "400")
        val screen = open(ChatActivity::class.java).get()
        until { parts.chat.state.value.phase == Phase.READY }
        picture(screen, "chat-empty-$name")
        screen.type(R.id.input, "Why does it rain?")
        screen.pressSoon(R.id.send)
        until { parts.chat.state.value.live!!.tokens >= 60 || parts.chat.state.value.phase == Phase.READY }
        idle()
        assertTrue(picture(screen, "chat-$name").length() > 10_000)
    }

    @Test @Config(qualifiers = Device.PHONE) fun `by day`() = streaming("light")

    @Test @Config(qualifiers = Device.PHONE_NIGHT) fun `at night`() = streaming("dark")

    private fun empty(name: String) {
        val screen = open(ChatActivity::class.java).get()
        until { screen.shown(R.id.choose_bundle) }
        picture(screen, "chat-no-bundle-$name")
    }

    @Test @Config(qualifiers = Device.PHONE) fun `without a bundle by day`() = empty("light")

    @Test @Config(qualifiers = Device.PHONE_NIGHT) fun `without a bundle at night`() = empty("dark")
}
