package dev.streamfuse.app

import android.content.Context
import android.text.method.LinkMovementMethod
import android.util.AttributeSet
import android.view.LayoutInflater
import android.view.View
import android.widget.LinearLayout
import android.widget.TextView
import dev.streamfuse.app.model.Block
import dev.streamfuse.app.model.CodeBlock
import dev.streamfuse.app.model.MarkdownStream
import dev.streamfuse.app.model.Prose
import dev.streamfuse.app.model.Rule
import dev.streamfuse.app.model.Run
import dev.streamfuse.app.model.TableText

/** An answer: its Markdown as paragraphs, blocks of code and tables, one view each. */
class AnswerView(context: Context, attributes: AttributeSet?) : LinearLayout(context, attributes) {
    private var markdown = MarkdownStream()
    private var runs: List<Run> = emptyList()
    private val written = StringBuilder()
    private val drafts = mutableListOf<Drafted>()
    private var showsDrafts = false
    private var nDone = 0 // number of blocks that no longer change
    private val shown = mutableListOf<Block>()

    /** The answer with its Markdown syntax. */
    val source: String get() = written.toString()

    /**
     * Shows [next]. If it extends what is shown, only the views of the last block change.
     *
     * @param isWhole whether the answer has ended. Before that its last characters may not be shown yet.
     */
    fun show(next: List<Run>, showsDrafts: Boolean, isWhole: Boolean) {
        if (showsDrafts != this.showsDrafts || !goesOn(next)) begin()
        this.showsDrafts = showsDrafts
        val from = markdown.start
        val before = written.length
        take(next)
        markdown.append(written.substring(before), isWhole)
        showBlocks(if (showsDrafts) drafts.takeLastWhile { it.letters.last >= from } else emptyList())
    }

    private fun begin() {
        markdown = MarkdownStream()
        runs = emptyList()
        written.clear()
        drafts.clear()
        nDone = 0
        shown.clear()
        removeAllViews()
    }

    private fun goesOn(next: List<Run>): Boolean {
        val last = runs.lastIndex
        if (last < 0) return true
        if (next.size <= last || (0 until last).any { next[it] != runs[it] }) return false
        return next[last].source == runs[last].source && next[last].text.startsWith(runs[last].text)
    }

    /** Appends the part of [next] that [runs] lacks. */
    private fun take(next: List<Run>) {
        val last = runs.lastIndex
        for (index in maxOf(0, last) until next.size) {
            val isGrown = index == last
            val start = if (isGrown) written.length - runs[last].text.length else written.length
            written.append(next[index].text, if (isGrown) runs[last].text.length else 0, next[index].text.length)
            val mark = Mark.of(next[index].source) ?: continue
            if (isGrown) drafts.removeAt(drafts.lastIndex)
            drafts += Drafted(mark, start until written.length)
        }
        runs = next
    }

    private fun showBlocks(drafts: List<Drafted>) {
        val blocks = markdown.done.subList(nDone, markdown.done.size) + markdown.open
        while (shown.size > nDone + blocks.size) {
            shown.removeAt(shown.lastIndex)
            removeViewAt(shown.size)
        }
        blocks.forEachIndexed { i, block ->
            val index = nDone + i
            if (index == shown.size) {
                addView(viewFor(block))
                shown += block
            } else if (shown[index] === block) {
                return@forEachIndexed // not read again, so its text and tints are the same
            } else if (shown[index].javaClass != block.javaClass) {
                removeViewAt(index)
                addView(viewFor(block), index)
            }
            shown[index] = block
            fill(getChildAt(index), block, drafts)
        }
        nDone = markdown.done.size
    }

    private fun viewFor(block: Block): View {
        val inflater = LayoutInflater.from(context)
        return when (block) {
            is Prose -> (inflater.inflate(R.layout.prose, this, false) as TextView).apply {
                movementMethod = LinkMovementMethod.getInstance() // that of selectable text opens no links
            }
            is CodeBlock, is TableText -> inflater.inflate(R.layout.code, this, false)!!
            Rule -> inflater.inflate(R.layout.rule, this, false)!!
        }
    }

    private fun fill(view: View, block: Block, drafts: List<Drafted>) {
        when (block) {
            is Prose -> (view as TextView).update(spannedOf(block, drafts, view))
            is CodeBlock -> {
                val code = view.findViewById<TextView>(R.id.code)!!
                code.update(spannedOf(block, drafts, code))
                val language = block.language.ifEmpty { context.getString(R.string.code) }
                view.findViewById<TextView>(R.id.language)!!.text = language
                view.findViewById<View>(R.id.copy_code)!!.setOnClickListener { context.copy(block.text) }
            }
            is TableText -> {
                view.findViewById<View>(R.id.code_bar)!!.visibility = View.GONE
                val code = view.findViewById<TextView>(R.id.code)!!
                code.update(spannedOf(block, drafts, code))
            }
            Rule -> Unit
        }
    }
}
