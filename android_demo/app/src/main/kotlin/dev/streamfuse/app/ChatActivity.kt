package dev.streamfuse.app

import android.app.AlertDialog
import android.content.Intent
import android.os.Bundle
import android.view.Menu
import android.view.MenuItem
import android.view.View
import android.widget.EditText
import android.widget.ImageButton
import android.widget.LinearLayout
import android.widget.ScrollView
import android.widget.TextView
import dev.streamfuse.Role
import dev.streamfuse.Source
import dev.streamfuse.app.model.ChatState
import dev.streamfuse.app.model.End
import dev.streamfuse.app.model.Live
import dev.streamfuse.app.model.Phase
import dev.streamfuse.app.model.Run
import dev.streamfuse.app.model.Turn
import java.util.Locale

class ChatActivity : Screen<ChatState>(R.layout.chat) {
    override val state get() = parts.chat.state
    private val shownTurns = mutableListOf<Turn>()
    private var writing = false

    override fun onCreate(savedInstanceState: Bundle?) {
        super.onCreate(savedInstanceState)
        showLegend()
        view<View>(R.id.choose_bundle).setOnClickListener { go(BundlesActivity::class.java) }
    }

    override fun onReady() = view<ImageButton>(R.id.send).setOnClickListener { if (writing) parts.chat.stop() else send() }

    override fun onVisible() {
        parts.chat.applySettings()
    }

    override fun onCreateOptionsMenu(menu: Menu): Boolean {
        menuInflater.inflate(R.menu.chat, menu)
        return true
    }

    override fun onOptionsItemSelected(item: MenuItem): Boolean {
        when (item.itemId) {
            R.id.new_chat -> whenReady(::newChat)
            R.id.bundles -> go(BundlesActivity::class.java)
            R.id.settings -> go(SettingsActivity::class.java)
            R.id.benchmark -> go(BenchmarkActivity::class.java)
            else -> return super.onOptionsItemSelected(item)
        }
        return true
    }

    /** Asks first where there is something to lose. */
    private fun newChat(parts: Parts) {
        if (parts.chat.state.value.turns.isEmpty()) {
            parts.chat.newChat()
            return
        }
        AlertDialog.Builder(this)
            .setMessage(R.string.new_chat_question)
            .setPositiveButton(R.string.new_chat) { _, _ -> parts.chat.newChat() }
            .setNegativeButton(R.string.cancel, null)
            .show()
    }

    override fun show(state: ChatState) {
        writing = state.phase == Phase.WRITING
        view<View>(R.id.scroll).keepScreenOn = writing
        actionBar!!.subtitle = state.bundle
        showTurns(state.turns)
        view<TextView>(R.id.note).show(noteOf(state))
        view<TextView>(R.id.error).say(state.error)
        view<View>(R.id.choose_bundle).shown(state.phase == Phase.NO_BUNDLE || state.phase == Phase.FAILED)
        view<TextView>(R.id.statistics).show(state.live?.let(::lineOf)?.ifEmpty { null })
        view<EditText>(R.id.input).setHint(if (state.canChat) R.string.ask else R.string.continue_text)
        showButton(state.phase)
        state.unsent?.let(::giveBack)
    }

    private fun send() {
        val input = view<EditText>(R.id.input)
        parts.chat.send(input.text.toString())
        if (state.value.phase == Phase.WRITING) input.text.clear()
    }

    private fun giveBack(unsent: String) {
        val input = view<EditText>(R.id.input)
        if (input.text.isEmpty()) input.setText(unsent)
        parts.chat.takeUnsent()
    }

    private fun showButton(phase: Phase) = view<ImageButton>(R.id.send).run {
        setImageResource(if (writing) R.drawable.stop else R.drawable.send)
        contentDescription = getString(if (writing) R.string.stop else R.string.send)
        isEnabled = writing || phase == Phase.READY
        alpha = if (isEnabled) 1f else 0.5f
    }

    /** Announced when it changes, so it changes when an answer begins and ends, not with each token. */
    private fun noteOf(state: ChatState): String? = when (state.phase) {
        Phase.NO_BUNDLE -> getString(R.string.no_bundle)
        Phase.LOADING -> getString(R.string.loading, state.bundle.orEmpty())
        Phase.LENT -> getString(R.string.lent)
        Phase.WRITING -> getString(if ((state.live?.tokens ?: 0) == 0) R.string.reading else R.string.writing)
        Phase.READY -> getString(state.turns.lastOrNull()?.let(::endOf) ?: R.string.welcome)
        Phase.FAILED -> null
    }

    private fun endOf(turn: Turn): Int = when (turn.end) {
        End.STOPPED -> R.string.end_stopped
        End.LEFT -> R.string.end_left
        End.FAILED -> R.string.end_failed
        "length" -> R.string.end_length
        "context" -> R.string.end_context
        else -> R.string.end_complete
    }

    /** The views of turns that have not changed stay as they are. */
    private fun showTurns(turns: List<Turn>) {
        val scroll = view<ScrollView>(R.id.scroll)
        val atEnd = !scroll.canScrollVertically(1)
        val container = view<LinearLayout>(R.id.turns)
        while (container.childCount > turns.size) container.removeViewAt(container.childCount - 1)
        while (shownTurns.size > turns.size) shownTurns.removeAt(shownTurns.size - 1)
        turns.forEachIndexed { index, turn ->
            if (index == container.childCount) {
                layoutInflater.inflate(R.layout.turn, container)
                shownTurns += turn
            } else if (shownTurns[index] == turn) {
                return@forEachIndexed
            }
            shownTurns[index] = turn
            showTurn(container.getChildAt(index), turn)
        }
        if (atEnd) scroll.post { scroll.scrollTo(0, container.bottom) }
    }

    private fun showTurn(row: View, turn: Turn) {
        val asked = turn.role == Role.USER
        row.findViewById<TextView>(R.id.role)!!.setText(if (asked) R.string.you else R.string.model)
        row.findViewById<AnswerView>(R.id.text)!!.run {
            if (asked) setBackgroundResource(R.drawable.question)
            show(turn.runs)
        }
    }

    private fun showLegend() {
        val runs = mutableListOf(Run(getString(R.string.legend), Source.MODEL))
        for (mark in Mark.entries) {
            runs += Run("  ", Source.MODEL)
            runs += Run(getString(mark.word), mark.source)
        }
        view<AnswerView>(R.id.legend).show(runs)
    }

    private fun lineOf(live: Live): String = listOfNotNull(
        live.firstTokenMs?.let { getString(R.string.first_token, "%.2f".format(Locale.getDefault(), it / 1000)) },
        live.tokensPerSecond?.let { getString(R.string.rate, "%.1f".format(Locale.getDefault(), it)) },
        live.tokensPerPass?.let { getString(R.string.per_pass, "%.2f".format(Locale.getDefault(), it)) },
        live.proposed?.let { getString(R.string.accepted_of, live.accepted, it) }
            ?: if (live.tokens > 0) getString(R.string.accepted, live.accepted) else null,
        live.fallbackReason?.let { getString(R.string.fallback, it) },
    ).joinToString(getString(R.string.separator))

    private fun go(screen: Class<*>) = startActivity(Intent(this, screen))
}
