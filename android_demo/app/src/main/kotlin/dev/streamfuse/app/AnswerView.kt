package dev.streamfuse.app

import android.content.Context
import android.graphics.Canvas
import android.graphics.DashPathEffect
import android.graphics.Paint
import android.graphics.PathEffect
import android.text.SpannableStringBuilder
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

    fun show(runs: List<Run>) {
        val built = SpannableStringBuilder()
        for (run in runs) {
            val start = built.length
            built.append(run.text)
            val mark = Mark.entries.firstOrNull { it.source == run.source } ?: continue
            built.setSpan(Drafted(mark, context.getColor(mark.color)), start, built.length, Spanned.SPAN_EXCLUSIVE_EXCLUSIVE)
        }
        text = built
    }

    override fun onDraw(canvas: Canvas) {
        super.onDraw(canvas)
        val shown = text as? Spanned ?: return
        canvas.save()
        canvas.translate(totalPaddingLeft.toFloat(), totalPaddingTop.toFloat())
        for (span in shown.getSpans(0, shown.length, Drafted::class.java)) {
            line.color = span.foregroundColor
            line.pathEffect = effects[span.mark]
            underline(canvas, shown.getSpanStart(span), shown.getSpanEnd(span))
        }
        canvas.restore()
    }

    private fun underline(canvas: Canvas, start: Int, end: Int) {
        for (row in layout.getLineForOffset(start)..layout.getLineForOffset(end)) {
            val to = minOf(end, layout.getLineVisibleEnd(row))
            var from = maxOf(start, layout.getLineStart(row))
            while (from < to && text[from].isWhitespace()) from++ // a space before a word is part of the token
            if (from >= to) continue
            val y = layout.getLineBaseline(row) + 3 * density
            val right = if (to == layout.getLineVisibleEnd(row)) layout.getLineMax(row) else layout.getPrimaryHorizontal(to)
            canvas.drawLine(layout.getPrimaryHorizontal(from), y, right, y, line)
        }
    }
}
