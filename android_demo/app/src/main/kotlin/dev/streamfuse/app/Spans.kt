package dev.streamfuse.app

import android.content.Context
import android.graphics.Typeface
import android.text.Editable
import android.text.SpannableStringBuilder
import android.text.Spanned
import android.text.style.BackgroundColorSpan
import android.text.style.ForegroundColorSpan
import android.text.style.LeadingMarginSpan
import android.text.style.RelativeSizeSpan
import android.text.style.StyleSpan
import android.text.style.TypefaceSpan
import android.text.style.URLSpan
import android.widget.TextView
import dev.streamfuse.Source
import dev.streamfuse.app.model.Block
import dev.streamfuse.app.model.Look
import dev.streamfuse.app.model.Prose

/** How drafted text is tinted where the user wants to see it. */
enum class Mark(val source: Source, val word: Int, val color: Int) {
    STREAMS(Source.STREAMS, R.string.streams, R.color.streams),
    LOOKUP(Source.LOOKUP, R.string.lookup, R.color.lookup),
    TABLE(Source.TABLE, R.string.table, R.color.table),
    MEMORY(Source.MEMORY, R.string.memory, R.color.memory),
    ;

    /** The background colour, translucent so that the text stays readable. */
    fun tint(context: Context): Int = context.getColor(color) and 0xFFFFFF or (TINT_ALPHA shl 24)

    companion object {
        const val TINT_ALPHA = 0x30

        fun of(source: Source): Mark? = entries.firstOrNull { it.source == source }
    }
}

/** A range of the answer's characters that one source drafted. */
class Drafted(val mark: Mark, val letters: IntRange)

/** The text of a block with its styles and the tints of [drafts]. */
fun spannedOf(block: Block, drafts: List<Drafted>, view: TextView): Spanned {
    val shown = SpannableStringBuilder(block.text)
    fun span(what: Any, from: Int, to: Int) = shown.setSpan(what, from, to, Spanned.SPAN_EXCLUSIVE_EXCLUSIVE)
    for (style in (block as? Prose)?.styles.orEmpty()) {
        for (span in spansOf(style.look, view)) span(span, style.start, style.end)
    }
    if (drafts.isEmpty()) return shown
    for (origin in block.origins) {
        for (draft in drafts) {
            val letters = origin.shownOf(draft.letters) ?: continue
            span(BackgroundColorSpan(draft.mark.tint(view.context)), letters.first, letters.last + 1)
        }
    }
    return shown
}

private fun spansOf(look: Look, view: TextView): List<Any> = when (look) {
    Look.Bold -> listOf(StyleSpan(Typeface.BOLD))
    Look.Italic -> listOf(StyleSpan(Typeface.ITALIC))
    Look.Monospaced -> listOf(TypefaceSpan("monospace"), BackgroundColorSpan(view.context.getColor(R.color.surface)))
    Look.Quoted -> listOf(
        LeadingMarginSpan.Standard((view.textSize * QUOTE_MARGIN).toInt()),
        ForegroundColorSpan(view.context.getColor(R.color.text_secondary)),
    )
    is Look.Headline -> {
        val size = HEADLINES[look.level.coerceAtMost(HEADLINES.size) - 1]
        listOf(StyleSpan(Typeface.BOLD), RelativeSizeSpan(size))
    }
    is Look.Linked -> if (isOfTheWeb(look.address)) listOf(URLSpan(look.address)) else emptyList()
    is Look.Item -> {
        val margin = ((look.depth - 1) * view.textSize * ITEM_MARGIN).toInt()
        listOf(LeadingMarginSpan.Standard(margin, margin + view.paint.measureText(look.mark).toInt()))
    }
}

/** Other addresses are not links: [URLSpan] throws for that of a file. */
private fun isOfTheWeb(address: String) = listOf("http://", "https://", "mailto:").any { address.startsWith(it, ignoreCase = true) }

private const val LOOKS = "android.text.style."
private const val QUOTE_MARGIN = 1f // in text sizes, like the next
private const val ITEM_MARGIN = 1.2f
private val HEADLINES = listOf(1.4f, 1.25f, 1.1f, 1f)

/** Shows [next]. The common prefix is not replaced, so a selection in it stays. */
fun TextView.update(next: Spanned) {
    val text = text as? Editable ?: return setText(next, TextView.BufferType.EDITABLE)
    val same = text.indices.firstOrNull { it >= next.length || text[it] != next[it] } ?: text.length
    if (same < text.length || same < next.length) text.replace(same, text.length, next, same, next.length)
    // Only our own: a selectable TextView has spans of its own.
    fun spans(of: Spanned) = of.getSpans(0, of.length, Any::class.java).filter { it.javaClass.name.startsWith(LOOKS) }
    spans(text).forEach(text::removeSpan)
    for (span in spans(next)) text.setSpan(span, next.getSpanStart(span), next.getSpanEnd(span), next.getSpanFlags(span))
}
