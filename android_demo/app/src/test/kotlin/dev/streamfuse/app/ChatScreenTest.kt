package dev.streamfuse.app

import android.content.ComponentCallbacks2
import android.content.res.Configuration
import android.view.View
import dev.streamfuse.GenerationConfig
import dev.streamfuse.app.model.Field
import dev.streamfuse.app.model.Phase
import dev.streamfuse.app.model.Speculation
import java.io.File
import org.junit.Assert.assertEquals
import org.junit.Assert.assertFalse
import org.junit.Assert.assertNotEquals
import org.junit.Assert.assertTrue
import org.junit.Test
import org.robolectric.RuntimeEnvironment
import org.robolectric.Shadows.shadowOf
import org.robolectric.annotation.Config
import org.robolectric.shadows.ShadowAlertDialog

/** The chat screen over a real bundle. */
@Config(qualifiers = Device.PHONE)
class ChatScreenTest : ChatScreen() {
    @Test fun `a person asks, waits and reads what the library writes, with its statistics`() {
        install("demo")
        parts.settings.set(Field.MAX_NEW_TOKENS, "24")
        val controller = openChat()
        val screen = controller.get()
        val answer = screen.answerTo("What is the capital of France?")
        assertEquals(library(GenerationConfig(), "What is the capital of France?" to 24), listOf(answer))
        assertEquals(listOf("What is the capital of France?", answer), screen.conversation())
        assertEquals("", screen.text(R.id.input).text.toString())
        // Whether drafts are used, and so whether there is a speed-up, depends on what passes cost on this machine.
        val measured = Figures(screen, parts.chat.state.value.turns.last().figures!!)
        assertEquals(measured.short, screen.text(R.id.chip).text.toString())
        screen.press(R.id.chip)
        val figures = shadowOf(ShadowAlertDialog.getLatestAlertDialog()!!).message.toString()
        assertEquals(measured.lines.joinToString("\n"), figures)
        assertTrue(figures, figures.contains(Regex("First token [0-9.]+ s\n[0-9.]+ tokens/s\n")))
        assertTrue(figures, figures.contains(Regex("[0-9]+ of [0-9]+ drafted tokens accepted")))
        assertTrue(figures, figures.contains(Regex("Prompt: [0-9]+ tokens, read at [0-9]+ tokens/s")))
        turn(controller)
    }

    @Test fun `stop ends the answer in the middle, and the conversation goes on`() {
        install("demo")
        parts.settings.set(Field.MAX_NEW_TOKENS, "400")
        val screen = openChat().get()
        screen.ask("Tell me a long story about a dragon.")
        until { tokens >= 5 }
        assertEquals("Stop", screen.findViewById<View>(R.id.send)!!.contentDescription)
        screen.press(R.id.send)
        ready()
        idle()
        assertTrue(tokens < 400)
        assertEquals("Stopped.", screen.text(R.id.note).text.toString())
        parts.settings.set(Field.MAX_NEW_TOKENS, "8")
        assertTrue(screen.answerTo("Go on.").isNotEmpty())
        assertEquals(4, screen.conversation().size)
    }

    @Test fun `an answer goes on while the phone is turned, and every word arrives`() {
        install("demo")
        val engine = held()
        parts.settings.set(Field.MAX_NEW_TOKENS, "60")
        val controller = openChat()
        controller.get().type(R.id.input, "half a question")
        controller.get().ask("Tell me a long story about a dragon.")
        controller.get().type(R.id.input, "typed meanwhile")
        until { tokens >= 5 }
        RuntimeEnvironment.setQualifiers("+land")
        controller.configurationChange()
        val turned = controller.get()
        assertEquals(Configuration.ORIENTATION_LANDSCAPE, turned.resources.configuration.orientation)
        assertEquals("typed meanwhile", turned.text(R.id.input).text.toString())
        assertEquals(Phase.WRITING, phase)
        engine.release()
        ready()
        idle()
        val expected = library(GenerationConfig(), "Tell me a long story about a dragon." to 60)
        assertEquals(expected, listOf(turned.conversation().last()))
    }

    @Test fun `an answer goes on for a moment after the app is left, and the screen stays on only while it is written`() {
        install("demo")
        val engine = held()
        parts.settings.set(Field.MAX_NEW_TOKENS, "60")
        val controller = openChat()
        val scroll = controller.get().findViewById<View>(R.id.scroll)!!
        controller.get().ask("Tell me a long story about a dragon.")
        until { tokens >= 5 }
        assertTrue(scroll.keepScreenOn)
        controller.pause().stop()
        until { File(app.filesDir, "chats").walk().any { it.name == "chat.json" } }
        assertEquals("what is there is kept at once", Phase.WRITING, phase)
        val before = tokens
        engine.release()
        until { tokens > before }
        controller.restart().start().resume()
        ready()
        idle()
        assertEquals(library(GenerationConfig(), "Tell me a long story about a dragon." to 60), listOf(controller.get().conversation().last()))
        assertFalse(scroll.keepScreenOn)
    }

    @Test fun `where the user stays away the answer ends and is saved, and goes on from there`() {
        install("demo")
        app.replace(Parts(app, graceMs = 300))
        parts.settings.set(Field.MAX_NEW_TOKENS, "840")
        val controller = openChat()
        controller.get().ask("Tell me a long story about a dragon.")
        until { tokens >= 5 }
        controller.pause().stop()
        until { phase == Phase.READY && File(app.filesDir, "chats").walk().any { it.name == "a.cache" } }
        controller.restart().start().resume()
        idle()
        assertEquals("Stopped when you left the app.", controller.get().text(R.id.note).text.toString())
    }

    @Test fun `a system without memory gets the model's, and the chat is there again with the screen`() {
        install("demo")
        parts.settings.set(Field.MAX_NEW_TOKENS, "8")
        val controller = openChat()
        val first = controller.get().answerTo("Hello")
        app.onTrimMemory(ComponentCallbacks2.TRIM_MEMORY_UI_HIDDEN)
        idle()
        assertEquals("hidden is not yet scarce", Phase.READY, phase)
        controller.pause().stop()
        app.onTrimMemory(ComponentCallbacks2.TRIM_MEMORY_BACKGROUND)
        idle()
        assertEquals("frozen is not yet scarce", Phase.READY, phase)
        trimMemory()
        until { phase == Phase.LOADING }
        controller.restart().start().resume()
        ready()
        until { controller.get().conversation().size == 2 }
        assertEquals(first, controller.get().conversation().last())
        assertEquals(library(GenerationConfig(), "Hello" to 8, "And now?" to 8)[1], controller.get().answerTo("And now?"))
    }

    @Test fun `a process that is killed in the middle of a greedy answer changes no later token`() = killed(GenerationConfig())

    @Test fun `nor of a sampled one`() = killed(GenerationConfig(temperature = 0.9, topK = 40, seed = 7))

    private fun killed(config: GenerationConfig) {
        install("demo")
        parts.settings.run {
            set(Field.MAX_NEW_TOKENS, "840") // long enough to be at work still when a slow test kills it
            config.temperature?.let { set(Field.TEMPERATURE, it.toString()) }
            config.topK?.let { set(Field.TOP_K, it.toString()) }
            config.seed?.let { set(Field.SEED, it.toString()) }
        }
        val controller = openChat()
        controller.get().ask("Tell me a long story about a dragon.")
        until { tokens >= 12 }
        val again = endProcess(controller, ChatActivity::class.java).get()
        ready()
        idle()
        val half = again.conversation().last()
        assertTrue(half.isNotEmpty())
        assertEquals("Stopped when you left the app.", again.text(R.id.note).text.toString())
        parts.settings.set(Field.MAX_NEW_TOKENS, "30")
        val answer = again.answerTo("Please go on with it.")
        val expected = library(config, "Tell me a long story about a dragon." to delivered, "Please go on with it." to 30)
        assertEquals(expected, listOf(half, answer))
    }

    /** Tokens of the answer that [endProcess] cut off, as the old process counted them. */
    private val delivered: Int get() = endedParts.last().chat.state.value.live!!.tokens

    @Test fun `settings take effect - sampled differs from greedy, and plain passes write the same text`() {
        install("demo")
        parts.settings.set(Field.MAX_NEW_TOKENS, "24")
        val screen = openChat().get()
        val greedy = screen.answerTo("Tell me about the sea.")
        fun again(change: () -> Unit): String {
            change()
            parts.chat.newChat()
            until { screen.conversation().isEmpty() }
            return screen.answerTo("Tell me about the sea.")
        }
        val sampled = again {
            parts.settings.set(Field.TEMPERATURE, "1.2")
            parts.settings.set(Field.SEED, "3")
        }
        assertNotEquals(greedy, sampled)
        assertEquals(sampled, again { parts.settings.set(Speculation.OFF) })
        assertTrue(Figures(screen, parts.chat.state.value.turns.last().figures!!).lines.any { it.startsWith("Plain passes: ") })
        assertEquals(greedy, again { parts.settings.set(Field.TEMPERATURE, "") })
    }

    @Test fun `a question that is refused shows an error and stays in the field`() {
        install("demo")
        val screen = openChat().get()
        val endless = "word ".repeat(20_000)
        screen.ask(endless)
        until { screen.shown(R.id.error) }
        assertTrue(screen.text(R.id.error).text.toString(), screen.text(R.id.error).text.contains("context"))
        assertEquals(endless.trim(), screen.text(R.id.input).text.toString())
        assertEquals(emptyList<Any>(), screen.conversation())
    }

    @Test fun `a question that is refused waits until the field is empty, and does not come back once it is deleted`() {
        install("demo")
        val controller = openChat()
        val screen = controller.get()
        val endless = "word ".repeat(20_000).trim()
        screen.ask(endless)
        screen.type(R.id.input, "typed meanwhile")
        until { screen.shown(R.id.error) }
        assertEquals("typed meanwhile", screen.text(R.id.input).text.toString())
        screen.type(R.id.input, "")
        assertEquals(endless, screen.text(R.id.input).text.toString())
        screen.type(R.id.input, "")
        assertEquals("", screen.text(R.id.input).text.toString())
        val again = endProcess(controller, ChatActivity::class.java).get()
        ready()
        idle()
        assertEquals("", again.text(R.id.input).text.toString())
    }

    @Test fun `without a bundle the way to one is shown`() {
        val screen = open(ChatActivity::class.java).get()
        until { screen.shown(R.id.choose_bundle) }
        assertFalse(screen.findViewById<View>(R.id.send)!!.isEnabled)
        screen.press(R.id.choose_bundle)
        assertEquals(BundlesActivity::class.java.name, startedFrom(screen))
    }
}
