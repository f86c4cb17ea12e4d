package dev.streamfuse.app

import android.text.Editable
import android.text.Selection
import android.text.Spanned
import android.text.TextWatcher
import android.text.method.LinkMovementMethod
import android.text.style.BackgroundColorSpan
import android.text.style.StyleSpan
import android.text.style.URLSpan
import android.view.View
import android.widget.TextView
import dev.streamfuse.Source
import dev.streamfuse.app.model.Run
import org.junit.Assert.assertEquals
import org.junit.Assert.assertSame
import org.junit.Assert.assertTrue
import org.junit.Test
import org.junit.runner.RunWith
import org.robolectric.Robolectric
import org.robolectric.RobolectricTestRunner
import org.robolectric.annotation.Config

/** An answer on the screen: its Markdown, its drafts where they are asked for, and how it grows. */
@RunWith(RobolectricTestRunner::class)
@Config(qualifiers = Device.PHONE)
class AnswerViewTest {
    private val screen = Robolectric.buildActivity(ChatActivity::class.java).create().get()

    private fun view() = AnswerView(screen, null)

    private fun AnswerView.texts(): List<TextView> = all().filterIsInstance<TextView>().filter { it.id != R.id.language }

    private fun AnswerView.text() = texts().joinToString("\n") { it.text }

    private inline fun <reified S : Any> TextView.styled(): List<String> = (text as Spanned).let { text ->
        text.getSpans(0, text.length, S::class.java).map { text.substring(text.getSpanStart(it), text.getSpanEnd(it)) }
    }

    /** A long answer as it grows: a token at a time, some of which join the run before. */
    private val growing: List<List<Run>> = buildList {
        var runs = emptyList<Run>()
        for (i in 0 until 400) {
            val (word, source) = "w$i ${if (i % 40 == 39) "\n\n" else ""}" to Source.entries[i / 3 % 4]
            val last = runs.lastOrNull()
            runs = if (last?.source == source) runs.dropLast(1) + last.copy(text = last.text + word) else runs + Run(word, source)
            add(runs)
        }
    }

    @Test fun `a growing answer changes each letter once, and looks as if it had been shown at once`() {
        val view = view()
        var changed = 0
        val seen = mutableSetOf<TextView>()
        for (runs in growing) {
            view.show(runs, showsDrafts = true, isWhole = false)
            for (text in view.texts().filter(seen::add)) text.addTextChangedListener(object : TextWatcher {
                override fun beforeTextChanged(text: CharSequence?, start: Int, count: Int, after: Int) = Unit

                override fun onTextChanged(text: CharSequence?, start: Int, before: Int, count: Int) {
                    changed += before + count
                }

                override fun afterTextChanged(text: Editable) = Unit
            })
        }
        view.show(growing.last(), showsDrafts = true, isWhole = true)
        val whole = view().also { it.show(growing.last(), showsDrafts = true, isWhole = true) }
        assertEquals(10, view.texts().size)
        assertEquals(whole.text(), view.text())
        assertEquals(whole.texts().map { it.styled<BackgroundColorSpan>() }, view.texts().map { it.styled<BackgroundColorSpan>() })
        assertTrue("$changed letters were changed for ${view.source.length}", changed <= view.source.length)
        view.show(listOf(Run("another", Source.MODEL)), showsDrafts = true, isWhole = true)
        assertEquals("another", view.text())
    }

    @Test fun `a state that reads no Markdown again keeps the spans of the view`() {
        val view = view()
        val text = "**bold** " + "word ".repeat(100)
        view.show(listOf(Run(text, Source.MODEL)), showsDrafts = true, isWhole = false)
        val shown = view.texts().single()
        fun bold() = (shown.text as Spanned).run { getSpans(0, length, StyleSpan::class.java) }.single()
        val before = bold()
        view.show(listOf(Run(text + "w", Source.MODEL)), showsDrafts = true, isWhole = false)
        assertSame(before, bold())
        view.show(listOf(Run(text + "w", Source.MODEL)), showsDrafts = true, isWhole = true)
        assertTrue(shown.text.endsWith(" w"))
    }

    @Test fun `links of the web can be followed, and others are text`() {
        val view = view()
        val text = "[docs](https://example.org) [mail](mailto:a@example.org) [file](file:///a) [code](javascript:a)"
        view.show(listOf(Run(text, Source.MODEL)), showsDrafts = false, isWhole = true)
        val shown = view.texts().single()
        assertEquals(listOf("docs", "mail"), shown.styled<URLSpan>())
        assertTrue("a touch follows a link", shown.movementMethod is LinkMovementMethod)
        assertTrue(shown.isTextSelectable)
    }

    @Test fun `what is selected in an answer stays selected while it grows`() {
        val view = view()
        view.show(growing[10], showsDrafts = false, isWhole = false)
        val shown = view.texts().single()
        Selection.setSelection(shown.text as Editable, 3, 9)
        view.show(growing[30], showsDrafts = false, isWhole = false)
        assertSame(shown, view.texts().single())
        assertEquals(3 to 9, shown.selectionStart to shown.selectionEnd)
    }

    private val marked = listOf(Run("A **bo", Source.MODEL), Run("ld** wo", Source.STREAMS), Run("rd.\n\n```py\nx = 1", Source.TABLE), Run("\n```\n", Source.MODEL))

    @Test fun `drafted letters are tinted where they are asked for, whatever Markdown makes of them`() {
        val view = view().apply { show(marked, showsDrafts = true, isWhole = true) }
        val (prose, code) = view.texts()
        assertEquals("A bold word." to "x = 1", prose.text.toString() to code.text.toString())
        assertEquals(listOf("bold"), prose.styled<StyleSpan>())
        assertEquals(listOf("ld", " wo", "rd."), prose.styled<BackgroundColorSpan>())
        assertEquals(listOf("x = 1"), code.styled<BackgroundColorSpan>())
        view.show(marked, showsDrafts = false, isWhole = true)
        assertEquals(emptyList<String>(), view.texts().flatMap { it.styled<BackgroundColorSpan>() })
        assertEquals(listOf("bold"), view.texts()[0].styled<StyleSpan>())
    }

    @Test fun `code has its language and is copied without its fence`() {
        val view = view().apply { show(marked, showsDrafts = false, isWhole = true) }
        assertEquals("py", view.findViewById<TextView>(R.id.language)!!.text.toString())
        view.findViewById<View>(R.id.copy_code)!!.performClick()
        val clipboard = screen.getSystemService(android.content.ClipboardManager::class.java)!!
        assertEquals("x = 1", clipboard.primaryClip!!.getItemAt(0).text)
    }
}
