package dev.streamfuse.app

import android.app.AlertDialog
import android.content.Context
import android.view.LayoutInflater
import android.view.View
import android.widget.Button
import android.widget.EditText
import android.widget.LinearLayout
import android.widget.PopupMenu
import android.widget.TextView
import dev.streamfuse.Role
import dev.streamfuse.app.model.Turn

/**
 * The messages in [container], a row each. Rows of messages that have not changed stay as they are.
 *
 * @property retry answers the last question again.
 * @property edit asks the user for another question in place of the one at an index, with these words.
 * @property showFigures shows all figures of an answer.
 */
class Turns(
    private val container: LinearLayout,
    private val retry: () -> Unit,
    private val edit: (index: Int, words: String, chat: String) -> Unit,
    private val showFigures: (lines: String) -> Unit,
) {
    private data class Row(
        val turn: Turn,
        val isLast: Boolean,
        val isFree: Boolean,
        val showsDrafts: Boolean,
        val chat: String,
    )

    private val context: Context = container.context
    private val rows = mutableListOf<Row>()

    /**
     * @param chat the id of the chat of these turns.
     * @param isFree the model can be asked now.
     */
    fun show(chat: String, turns: List<Turn>, isFree: Boolean, showsDrafts: Boolean) {
        while (rows.size > turns.size) removeFrom(rows.lastIndex)
        turns.forEachIndexed { index, turn ->
            val row = Row(turn, index == turns.lastIndex, isFree, showsDrafts, chat)
            val isOther = index < rows.size && rows[index].turn.role != turn.role
            if (isOther) while (rows.size > index) removeFrom(rows.lastIndex)
            val isNew = index == rows.size
            if (isNew) {
                val layout = if (turn.role == Role.USER) R.layout.question else R.layout.answer
                LayoutInflater.from(context).inflate(layout, container)
                rows += row
            } else if (rows[index] == row) {
                return@forEachIndexed
            }
            rows[index] = row
            val view = container.getChildAt(index)!!
            if (turn.role == Role.USER) showQuestion(view, index, row) else showAnswer(view, row)
        }
    }

    private fun removeFrom(index: Int) {
        rows.removeAt(index)
        container.removeViewAt(index)
    }

    private fun showQuestion(view: View, index: Int, row: Row) = view.findViewById<TextView>(R.id.question)!!.run {
        val words = row.turn.text
        text = words
        contentDescription = context.textOf(R.string.you_said, words)
        setOnClickListener { menuOf(this, index, row) }
    }

    private fun menuOf(question: View, index: Int, row: Row) = PopupMenu(context, question).run {
        val words = row.turn.text
        inflate(R.menu.question)
        menu.findItem(R.id.edit)!!.isEnabled = row.isFree
        setOnMenuItemClickListener { item ->
            when (item.itemId) {
                R.id.copy_question -> context.copy(words)
                R.id.share_question -> context.share(words)
                else -> edit(index, words, row.chat)
            }
            true
        }
        show()
    }

    private fun showAnswer(view: View, row: Row) {
        val turn = row.turn
        val answer = view.findViewById<AnswerView>(R.id.answer)!!
        answer.show(turn.runs, row.showsDrafts, isWhole = turn.end != null)
        view.findViewById<View>(R.id.actions)!!.visibility = if (turn.end == null) View.GONE else View.VISIBLE
        val figures = turn.figures?.let { Figures(context, it) }
        view.findViewById<Button>(R.id.chip)!!.run {
            visibility = if (figures?.short == null) View.GONE else View.VISIBLE
            text = figures?.short
            contentDescription = context.textOf(R.string.figures_of, figures?.short)
            setOnClickListener { figures?.let { showFigures(it.lines.joinToString("\n")) } }
        }
        view.findViewById<View>(R.id.copy)!!.setOnClickListener { context.copy(answer.source) }
        view.findViewById<View>(R.id.share)!!.setOnClickListener { context.share(answer.source) }
        view.findViewById<View>(R.id.retry)!!.run {
            visibility = if (row.isLast && row.isFree) View.VISIBLE else View.GONE
            setOnClickListener { retry() }
        }
    }
}

/** Asks for a text in a dialog, in the field with the id `field`. */
fun Context.askForText(title: Int, text: String, done: Int, help: Int? = null, take: (String) -> Unit): AlertDialog {
    val view = LayoutInflater.from(this).inflate(R.layout.text_dialog, null)!!
    val field = view.findViewById<EditText>(R.id.field)!!
    field.setText(text)
    field.setSelection(text.length)
    view.findViewById<TextView>(R.id.field_help)!!.run {
        if (help == null) visibility = View.GONE else setText(help)
    }
    return AlertDialog.Builder(this)
        .setTitle(title)
        .setView(view)
        .setPositiveButton(done) { _, _ -> take(field.text.toString()) }
        .setNegativeButton(R.string.cancel, null)
        .show()
}
