package dev.streamfuse.app

import android.content.Context
import android.graphics.Canvas
import android.graphics.DashPathEffect
import android.graphics.Paint
import android.graphics.Path
import android.graphics.PathEffect
import android.graphics.Rect
import android.text.Editable
import android.text.Spanned
import android.text.style.ForegroundColorSpan
import android.util.AttributeSet
import android.widget.TextView
import dev.streamfuse.Source
import dev.streamfuse.app.model.Run

/** How drafted text looks: a colour, and a kind of line for those who cannot tell colours apart. Lengths in dp. */
enum class Mark(val source: Source, val word: Int, val color: Int, val dash: FloatArray?) {
    STREAMS(Source.STREAMS, R.string.streams, R.color.streams, null),
    LOOKUP(Source.LOOKUP, R.string.lookup, R.color.lookup, floatArrayOf(6f, 3f)),
    TABLE(Source.TABLE, R.string.table, R.color.table, floatArrayOf(2f, 2f)),
}

/** Text whose drafted parts are coloured and underlined by their source. */
class AnswerView(context: Context, attributes: AttributeSet?) : TextView(context, attributes) {
    private class Drafted(val mark: Mark, color: Int) : ForegroundColorSpan(color)

    private val density = resources.displayMetrics.density
    private val line = Paint(Paint.ANTI_ALIAS_FLAG).apply {
        style = Paint.Style.STROKE
        strokeWidth = 1.5f * density
    }
    private val effects: Map<Mark, PathEffect?> = Mark.entries.associateWith { mark ->
        mark.dash?.let { dash -> DashPathEffect(FloatArray(dash.size) { dash[it] * density }, 0f) }
    }

    private val visible = Rect()
    private val selection = Path()
    private var shown: List<Run> = emptyList()
    private var lastSpan: Drafted? = null // of the last run, which may grow

    /**
     * Shows [runs]. What is shown already stays as it is and the rest is appended, so that a growing answer is laid out
     * from its last paragraph on, and a selection stays.
     */
    fun show(runs: List<Run>) {
        val shared = sharedWith(runs)
        if (shared == null) {
            setText("", BufferType.EDITABLE)
            runs.forEach(::append)
        } else if (runs.isNotEmpty()) {
            grow(runs[shared].text.substring(shown[shared].text.length))
            runs.drop(shared + 1).forEach(::append)
        }
        shown = runs
    }

    /** The index of the last shown run where [runs] go on from what is shown; null where they are another text. */
    private fun sharedWith(runs: List<Run>): Int? {
        val last = shown.lastIndex
        if (last < 0 || runs.size <= last || text !is Editable) return null
        if ((0 until last).any { shown[it] != runs[it] }) return null
        return last.takeIf { shown[last].source == runs[last].source && runs[last].text.startsWith(shown[last].text) }
    }

    private fun append(run: Run) {
        val start = length()
        editableText.append(run.text)
        val mark = Mark.entries.firstOrNull { it.source == run.source }
        lastSpan = mark?.let { Drafted(it, context.getColor(it.color)) }
        lastSpan?.let { editableText.setSpan(it, start, length(), Spanned.SPAN_EXCLUSIVE_EXCLUSIVE) }
    }

    private fun grow(more: String) {
        if (more.isEmpty()) return
        editableText.append(more)
        lastSpan?.let { editableText.setSpan(it, editableText.getSpanStart(it), length(), Spanned.SPAN_EXCLUSIVE_EXCLUSIVE) }
    }

    override fun onDraw(canvas: Canvas) {
        super.onDraw(canvas)
        val shown = text as? Spanned ?: return
        if (!canvas.getClipBounds(visible)) return
        canvas.save()
        canvas.translate(totalPaddingLeft.toFloat(), totalPaddingTop.toFloat())
        val rows = layout.getLineForVertical(visible.top - totalPaddingTop)..layout.getLineForVertical(visible.bottom - totalPaddingTop)
        for (row in rows) {
            for (span in shown.getSpans(layout.getLineStart(row), layout.getLineEnd(row), Drafted::class.java)) {
                line.color = span.foregroundColor
                line.pathEffect = effects[span.mark]
                underline(canvas, row, shown.getSpanStart(span), shown.getSpanEnd(span))
            }
        }
        canvas.restore()
    }

    /** The line below what of [start] to [end] is in a row: where a selection of it would be, in any direction of text. */
    private fun underline(canvas: Canvas, row: Int, start: Int, end: Int) {
        val to = minOf(end, layout.getLineVisibleEnd(row))
        var from = maxOf(start, layout.getLineStart(row))
        while (from < to && text[from].isWhitespace()) from++ // a space before a word is part of the token
        if (from >= to) return
        layout.getSelectionPath(from, to, selection)
        val y = minOf(layout.getLineBaseline(row) + 3 * density, layout.getLineBottom(row) - line.strokeWidth)
        val (left, right) = layout.getLineLeft(row) to layout.getLineRight(row)
        canvas.save()
        canvas.clipPath(selection)
        canvas.drawLine(left, y, right, y, line)
        canvas.restore()
    }
}
