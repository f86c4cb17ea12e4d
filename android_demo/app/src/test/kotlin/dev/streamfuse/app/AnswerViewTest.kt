package dev.streamfuse.app

import android.graphics.Bitmap
import android.graphics.Canvas
import android.graphics.Color
import android.text.Editable
import android.text.Selection
import android.text.TextWatcher
import android.text.style.ForegroundColorSpan
import android.view.View.MeasureSpec
import dev.streamfuse.Source
import dev.streamfuse.app.model.Run
import kotlin.math.abs
import org.junit.Assert.assertEquals
import org.junit.Assert.assertNotNull
import org.junit.Assert.assertSame
import org.junit.Assert.assertTrue
import org.junit.Test
import org.junit.runner.RunWith
import org.robolectric.RobolectricTestRunner
import org.robolectric.RuntimeEnvironment
import org.robolectric.annotation.Config

/** An answer on the screen: it grows by what is new, and its underlines lie below their words in any direction of text. */
@RunWith(RobolectricTestRunner::class)
@Config(qualifiers = Device.PHONE)
class AnswerViewTest {
    private fun view() = AnswerView(RuntimeEnvironment.getApplication(), null).apply { textSize = 20f }

    private fun AnswerView.place() {
        measure(MeasureSpec.makeMeasureSpec(WIDTH, MeasureSpec.EXACTLY), MeasureSpec.UNSPECIFIED)
        layout(0, 0, WIDTH, measuredHeight)
    }

    private fun AnswerView.spans(): List<Triple<Int, Int, Int>> = editableText.let { text ->
        text.getSpans(0, text.length, ForegroundColorSpan::class.java)
            .map { Triple(text.getSpanStart(it), text.getSpanEnd(it), it.foregroundColor) }.sortedBy { it.first }
    }

    /** A long answer as it grows: a token at a time, some of which join the run before. */
    private val growing: List<List<Run>> = buildList {
        var runs = emptyList<Run>()
        for (i in 0 until 400) {
            val (word, source) = "w$i " to Source.entries[i / 3 % 4]
            val last = runs.lastOrNull()
            runs = if (last?.source == source) runs.dropLast(1) + last.copy(text = last.text + word) else runs + Run(word, source)
            add(runs)
        }
    }

    @Test fun `a growing answer changes each letter once, and looks as if it had been shown at once`() {
        val view = view()
        var changed = 0
        view.addTextChangedListener(object : TextWatcher {
            override fun beforeTextChanged(text: CharSequence?, start: Int, count: Int, after: Int) = Unit

            override fun onTextChanged(text: CharSequence?, start: Int, before: Int, count: Int) {
                changed += before + count
            }

            override fun afterTextChanged(text: Editable) = Unit
        })
        growing.forEach(view::show)
        val whole = view().also { it.show(growing.last()) }
        assertEquals(whole.text.toString(), view.text.toString())
        assertEquals(whole.spans(), view.spans())
        assertTrue("$changed letters were changed for ${view.length()}", changed <= view.length())
        view.show(listOf(Run("another", Source.MODEL)))
        assertEquals("another", view.text.toString())
        assertEquals(emptyList<Any>(), view.spans())
    }

    @Test fun `what is selected in an answer stays selected while it grows`() {
        val view = view()
        view.setTextIsSelectable(true)
        view.show(growing[10])
        val text = view.editableText
        Selection.setSelection(text, 3, 9)
        view.show(growing[50])
        assertSame(text, view.editableText)
        assertEquals(3 to 9, view.selectionStart to view.selectionEnd)
    }

    /** From where to where a line of the streams' colour is drawn below the first row. */
    private fun underline(vararg runs: Run): Pair<AnswerView, IntRange> {
        val view = view().apply { show(runs.toList()) }
        view.setTextColor(Color.WHITE)
        view.editableText.let { text -> // the letters are white, so that what is left is the line
            text.setSpan(ForegroundColorSpan(Color.WHITE), 0, text.length, 0)
        }
        view.place()
        val bitmap = Bitmap.createBitmap(WIDTH, view.height, Bitmap.Config.ARGB_8888)!!
        view.draw(Canvas(bitmap).apply { drawColor(Color.WHITE) })
        val drawn = (0 until WIDTH).filter { x -> (0 until view.height).any { y -> Color.luminance(bitmap.getPixel(x, y)) < 0.6f } }
        assertTrue("nothing is drawn", drawn.isNotEmpty())
        return view to drawn.first()..drawn.last()
    }

    private fun assertBetween(first: Float, second: Float, drawn: IntRange) {
        val (left, right) = listOf(first, second).sorted()
        assertTrue("$drawn is not $left..$right", abs(drawn.first - left) < 4 && abs(drawn.last - right) < 4)
    }

    @Test fun `from left to right the line goes from the first letter to the last`() {
        val (view, drawn) = underline(Run("one", Source.MODEL), Run(" two", Source.STREAMS))
        assertBetween(view.layout.getPrimaryHorizontal(4), view.layout.getLineRight(0), drawn)
    }

    @Test fun `from right to left too, also for the last word of a row`() {
        val (view, drawn) = underline(Run("אבג", Source.MODEL), Run(" דהו", Source.STREAMS))
        assertNotNull(view.layout)
        assertBetween(view.layout.getPrimaryHorizontal(4), view.layout.getLineLeft(0), drawn)
    }

    @Test fun `a part of a Hebrew word in an English row is underlined where it stands`() {
        val (view, drawn) = underline(Run("abc ", Source.MODEL), Run("אב", Source.STREAMS), Run("גד xyz", Source.MODEL))
        // The word's letters run from the right: its first two end where the space before xyz begins.
        val space = view.layout.getPrimaryHorizontal(9) - view.paint.measureText(" ")
        assertBetween(view.layout.getPrimaryHorizontal(6), space, drawn)
    }

    private companion object {
        const val WIDTH = 700
    }
}
