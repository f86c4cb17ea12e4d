package dev.streamfuse.app

import android.app.Activity
import android.text.Layout
import android.view.View
import android.widget.ListView
import android.widget.ScrollView
import android.widget.TextView
import dev.streamfuse.Role
import dev.streamfuse.Source
import dev.streamfuse.app.model.ChatRecord
import dev.streamfuse.app.model.Field
import dev.streamfuse.app.model.Phase
import dev.streamfuse.app.model.Run
import dev.streamfuse.app.model.SavedChats
import dev.streamfuse.app.model.Turn
import dev.streamfuse.testing.Publisher
import java.io.File
import java.util.concurrent.CountDownLatch
import org.junit.Assert.assertEquals
import org.junit.Assert.assertTrue
import org.junit.Test
import org.robolectric.annotation.Config

/** All screens in a right-to-left layout, with the first element on the right. Pictures: build/android/screenshots. */
@Config(qualifiers = Device.PHONE_RTL)
class RightToLeftTest : Device() {
    private fun Activity.place(id: Int): IntRange = findViewById<View>(id)!!.run {
        val place = IntArray(2).also(::getLocationInWindow)
        place[0] until place[0] + width
    }

    private infix fun IntRange.isLeftOf(other: IntRange) = assertTrue("$this, $other", last < other.first)

    private fun TextView.beginsOnTheRight() = assertTrue("$text: ${layout.getLineRight(0)}", layout.getLineRight(0) > layout.width - 2)

    private fun TextView.endsOnTheLeft() = assertTrue("$text: ${layout.getLineLeft(0)}", layout.getLineLeft(0) < 2)

    private fun TextView.isWrittenFromTheLeft() =
        (0 until layout.lineCount).forEach { assertEquals("$text", Layout.DIR_LEFT_TO_RIGHT, layout.getParagraphDirection(it)) }

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

    @Test fun `the list of chats has its buttons on the left`() {
        val saved = SavedChats(File(app.filesDir, "chats"))
        for (question in listOf("Plan a weekend in Rome.", SKY, "Write fib(n) in C++.", "(1 + 2) * 3 = ?")) {
            val turn = Turn(Role.USER, listOf(Run(question, Source.MODEL)))
            saved.write(saved.newId(), ChatRecord("demo", null, listOf(turn)))
        }
        val screen = open(ChatsActivity::class.java).get()
        until { screen.findViewById<ListView>(R.id.chat_list)!!.childCount == 4 }
        picture(screen, "chats-rtl")
        screen.place(R.id.chat_more) isLeftOf screen.place(R.id.chat_title)
        val titles = screen.all().filter { it.id == R.id.chat_title }.map { it as TextView }
        titles.forEach { it.beginsOnTheRight() }
        titles.first { '+' in it.text }.isWrittenFromTheLeft()
        parts.chats.delete(parts.chats.state.value.chats.first { it.title == SKY }.id)
        until { screen.shown(R.id.deleted) }
        picture(screen, "chats-undo-rtl")
        screen.text(R.id.deleted).isWrittenFromTheLeft()
    }

    @Test fun `bundles have their buttons on the left, and a download grows from the right`() {
        install("demo")
        install("sql", use = false)
        Publisher().use { publisher ->
            publisher.publish("e2e" to Publisher.contentOf(built("e2e").canonicalFile))
            val gate = CountDownLatch(1)
            publisher.goesAwayHalfway("e2e/model.pte", gate)
            val screen = open(BundlesActivity::class.java).get()
            screen.type(R.id.catalog, publisher.address)
            screen.press(R.id.catalog_show)
            until { screen.all().any { it.id == R.id.download && it.isShown } }
            picture(screen, "bundles-rtl")
            screen.place(R.id.delete) isLeftOf screen.place(R.id.use)
            listOf(R.id.use, R.id.title, R.id.facts).forEach { screen.text(it).beginsOnTheRight() }
            listOf(R.id.facts, R.id.catalog).forEach { screen.text(it).isWrittenFromTheLeft() }
            screen.press(R.id.download)
            until { downloadedShare() > 1 / 3.0 }
            picture(screen, "download-rtl")
            assertTrue("${screen.text(R.id.offer_state).text}", "MB" in screen.text(R.id.offer_state).text)
            screen.pressSoon(R.id.pause)
            gate.countDown()
            until { screen.shown(R.id.discard) }
            picture(screen, "paused-rtl")
        }
    }

    @Test fun `settings have their values on the left`() {
        install("demo")
        parts.settings.set(Field.TEMPERATURE, "0.5")
        val screen = open(SettingsActivity::class.java).get()
        picture(screen, "settings-rtl")
        screen.place(R.id.value) isLeftOf screen.place(R.id.label)
        screen.text(R.id.label).beginsOnTheRight()
        screen.press(R.id.more_settings)
        screen.findViewById<ScrollView>(R.id.scroll)!!.fullScroll(View.FOCUS_DOWN)
        picture(screen, "settings-more-rtl")
    }

    @Test fun `a benchmark has its figures on the left, and its report as it is shared`() {
        install("demo")
        val screen = open(BenchmarkActivity::class.java).get()
        until { parts.chat.state.value.phase == Phase.READY }
        screen.type(R.id.tokens, "12")
        screen.press(R.id.run)
        until { screen.shown(R.id.progress) && parts.benchmark.state.value.done > 0 }
        picture(screen, "benchmark-running-rtl")
        until { screen.shown(R.id.result) }
        picture(screen, "benchmark-rtl")
        screen.text(R.id.name).beginsOnTheRight()
        screen.text(R.id.headline).isWrittenFromTheLeft()
        val rate = screen.text(R.id.value)
        rate.endsOnTheLeft()
        rate.isWrittenFromTheLeft()
        val (plain, speculative) = Regex("[0-9\u0660-\u0669]+").findAll(rate.text).map { it.range.first }.toList()
            .let { listOf(it.first(), it[2]) }.map { rate.layout.getPrimaryHorizontal(it) }
        assertTrue("from $plain to $speculative", plain < speculative)
        screen.press(R.id.details)
        screen.findViewById<ScrollView>(R.id.scroll)!!.fullScroll(View.FOCUS_DOWN)
        picture(screen, "benchmark-details-rtl")
        screen.text(R.id.report).isWrittenFromTheLeft()
    }

    private companion object {
        const val SKY = "\u0644\u0645\u0627\u0630\u0627 \u0627\u0644\u0633\u0645\u0627\u0621 \u0632\u0631\u0642\u0627\u0621\u061f"
    }
}
