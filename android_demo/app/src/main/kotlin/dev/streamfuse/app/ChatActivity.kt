package dev.streamfuse.app

import android.content.Intent
import android.graphics.Color
import android.os.Build
import android.os.Bundle
import android.text.SpannableStringBuilder
import android.text.style.BackgroundColorSpan
import android.view.HapticFeedbackConstants
import android.view.KeyEvent
import android.view.Menu
import android.view.MenuItem
import android.view.View
import android.widget.Button
import android.widget.EditText
import android.widget.ImageButton
import android.widget.LinearLayout
import android.widget.ScrollView
import android.widget.TextView
import android.widget.Toolbar
import dev.streamfuse.app.model.ChatState
import dev.streamfuse.app.model.End
import dev.streamfuse.app.model.Phase
import dev.streamfuse.app.model.Turn

/** The conversation; on a tablet the list of chats is beside it. */
class ChatActivity : Screen<ChatState>(R.layout.chat) {
    override val state get() = parts.chat.state
    private lateinit var turns: Turns
    private val input get() = view<EditText>(R.id.input)
    private val list get() = findViewById<ChatListView>(R.id.chats) // null on a phone
    private var writing = false
    private var wasAtEnd = true // before the screen was turned

    override fun onCreate(savedInstanceState: Bundle?) {
        super.onCreate(savedInstanceState)
        wasAtEnd = savedInstanceState?.getBoolean(AT_END, true) ?: true
        turns = Turns(view(R.id.turns), retry = { parts.chat.retry() }, ::askToEdit, ::showFigures)
        showLegend()
        showSuggestions()
        if (list == null) {
            view<Toolbar>(R.id.bar).setNavigationIcon(R.drawable.chats)
            view<Toolbar>(R.id.bar).setNavigationContentDescription(R.string.chats)
            view<Toolbar>(R.id.bar).setNavigationOnClickListener { go(ChatsActivity::class.java) }
        }
        view<View>(R.id.choose_bundle).setOnClickListener { go(BundlesActivity::class.java) }
        view<ScrollView>(R.id.scroll).setOnScrollChangeListener { _, _, _, _, _ -> showToEnd() }
        view<View>(R.id.to_end).setOnClickListener { view<ScrollView>(R.id.scroll).fullScroll(View.FOCUS_DOWN) }
        if (savedInstanceState == null) takeShared(intent)
    }

    override fun onSaveInstanceState(outState: Bundle) {
        super.onSaveInstanceState(outState)
        outState.putBoolean(AT_END, isAtEnd())
    }

    private fun isAtEnd() = view<ScrollView>(R.id.scroll).run { if (isLaidOut) !canScrollVertically(1) else wasAtEnd }

    override fun onNewIntent(intent: Intent) {
        super.onNewIntent(intent)
        takeShared(intent)
    }

    /** What another app shares is the beginning of a question. The list of recent apps gives the same intent again. */
    private fun takeShared(intent: Intent) {
        val isOld = intent.flags and Intent.FLAG_ACTIVITY_LAUNCHED_FROM_HISTORY != 0
        if (intent.action != Intent.ACTION_SEND || isOld) return
        putFirst(intent.getCharSequenceExtra(Intent.EXTRA_TEXT)?.toString() ?: return) // often with spans, so no String
    }

    /** Puts [text] into the field, before what is there. */
    private fun putFirst(text: String) {
        if (text.isBlank()) return
        input.text.insert(0, if (input.text.isEmpty()) text else "$text\n")
        input.setSelection(text.length)
    }

    override fun onReady() {
        view<ImageButton>(R.id.send).setOnClickListener { if (writing) stop() else send() }
        input.setOnKeyListener { _, _, event -> onEnter(event) }
        input.onTyped { if (it.isEmpty()) giveBack() }
        list?.use(parts.chats, ::askForTitle) {}
    }

    /** Enter of a keyboard with keys sends; with Shift, or of one on the screen, it begins a line. */
    private fun onEnter(event: KeyEvent): Boolean {
        val isSoft = event.flags and KeyEvent.FLAG_SOFT_KEYBOARD != 0
        if (event.keyCode != KeyEvent.KEYCODE_ENTER || event.isShiftPressed || isSoft) return false
        if (event.action == KeyEvent.ACTION_DOWN && !writing) send()
        return true
    }

    override fun onVisible() {
        parts.chat.applySettings()
    }

    override suspend fun showMore() {
        val list = list ?: return
        collect(parts.chats.state, list::show)
    }

    override fun onCreateOptionsMenu(menu: Menu): Boolean {
        menuInflater.inflate(R.menu.chat, menu)
        return true
    }

    override fun onPrepareOptionsMenu(menu: Menu): Boolean {
        whenReady { menu.findItem(R.id.show_drafts)?.isChecked = it.settings.settings.value.showsDrafts }
        return true
    }

    override fun onOptionsItemSelected(item: MenuItem): Boolean {
        when (item.itemId) {
            R.id.new_chat -> whenReady { it.chat.newChat() }
            R.id.bundles -> go(BundlesActivity::class.java)
            R.id.settings -> go(SettingsActivity::class.java)
            R.id.benchmark -> go(BenchmarkActivity::class.java)
            R.id.show_drafts -> whenReady {
                it.settings.setShowsDrafts(!it.settings.settings.value.showsDrafts)
                show(state.value)
            }
            else -> return super.onOptionsItemSelected(item)
        }
        return true
    }

    override fun show(state: ChatState) {
        writing = state.phase == Phase.WRITING
        val scroll = view<ScrollView>(R.id.scroll)
        scroll.keepScreenOn = writing
        actionBar!!.subtitle = state.bundle
        val atEnd = isAtEnd()
        val showsDrafts = parts.settings.settings.value.showsDrafts
        turns.show(state.chat.orEmpty(), state.turns, state.phase == Phase.READY, showsDrafts)
        if (atEnd) scroll.post { scroll.scrollTo(0, view<View>(R.id.turns).bottom) } else scroll.post(::showToEnd)
        view<View>(R.id.legend).shown(showsDrafts)
        showNote(state)
        view<TextView>(R.id.error).show(state.error)
        val needsBundle = state.phase == Phase.NO_BUNDLE || state.phase == Phase.FAILED
        view<View>(R.id.choose_bundle).shown(needsBundle)
        view<View>(R.id.composer).shown(!needsBundle)
        val isEmpty = state.turns.isEmpty() && state.phase == Phase.READY && state.canChat
        view<View>(R.id.hello).shown(isEmpty)
        view<View>(R.id.suggestions).shown(isEmpty)
        input.setHint(if (state.canChat) R.string.ask else R.string.continue_text)
        showButton(state.phase)
        giveBack()
    }

    private fun showToEnd() = view<View>(R.id.to_end).shown(view<ScrollView>(R.id.scroll).canScrollVertically(1))

    private fun send() {
        feel()
        if (parts.chat.send(input.text.toString())) input.text.clear()
    }

    private fun askToEdit(index: Int, words: String, chat: String) =
        askFor(R.string.edit, "$index $chat", words, R.string.send, R.string.edit_help) { edit(index, it, chat) }

    override fun askAgain(title: Int, about: String, text: String) {
        if (title != R.string.edit) return super.askAgain(title, about, text)
        askToEdit(about.substringBefore(' ').toInt(), text, about.substringAfter(' '))
    }

    /**
     * Asks [text] in place of an earlier question of [chat]. If another chat is open or the model is busy by now, the
     * text waits in the field.
     */
    private fun edit(index: Int, text: String, chat: String) = whenReady {
        if (it.chat.state.value.chat != chat || !it.chat.edit(index, text)) putFirst(text)
    }

    private fun stop() {
        feel()
        parts.chat.stop()
    }

    private fun feel() {
        val touch = if (Build.VERSION.SDK_INT >= 30) HapticFeedbackConstants.CONFIRM else HapticFeedbackConstants.VIRTUAL_KEY
        view<View>(R.id.send).performHapticFeedback(touch)
    }

    /** Puts a question that was not asked into the field, once nothing else is there. */
    private fun giveBack() {
        val unsent = state.value.unsent ?: return
        if (input.text.isNotEmpty()) return
        input.setText(unsent)
        parts.chat.takeUnsent()
    }

    private fun showButton(phase: Phase) = view<ImageButton>(R.id.send).run {
        setImageResource(if (writing) R.drawable.stop else R.drawable.send)
        contentDescription = getString(if (writing) R.string.stop else R.string.send)
        isEnabled = writing || phase == Phase.READY
        alpha = if (isEnabled) 1f else 0.5f
    }

    /** Announced when it changes, when an answer begins and ends. What can be seen anyhow is for the ear only. */
    private fun showNote(state: ChatState) {
        val words = noteOf(state)
        val isSeen = words != R.string.writing && words != R.string.end_complete
        view<TextView>(R.id.note).run {
            setTextColor(if (isSeen) getColor(R.color.text_secondary) else Color.TRANSPARENT)
            show(words?.let { textOf(it, state.bundle.orEmpty()) })
        }
    }

    private fun noteOf(state: ChatState): Int? = when (state.phase) {
        Phase.NO_BUNDLE -> R.string.no_bundle
        Phase.LOADING -> R.string.loading
        Phase.LENT -> R.string.lent
        Phase.WRITING -> if ((state.live?.tokens ?: 0) == 0) R.string.reading else R.string.writing
        Phase.READY -> state.turns.lastOrNull()?.let(::endOf) ?: R.string.welcome
        Phase.FAILED -> null
    }

    private fun endOf(turn: Turn): Int = when (turn.end) {
        End.STOPPED -> R.string.end_stopped
        End.LEFT -> R.string.end_left
        End.FAILED -> R.string.end_failed
        End.LENGTH -> R.string.end_length
        End.CONTEXT -> R.string.end_context
        else -> R.string.end_complete
    }

    private fun showLegend() {
        val text = SpannableStringBuilder(getString(R.string.legend))
        for (mark in Mark.entries) {
            text.append("  ").append(" ${getString(mark.word)} ", BackgroundColorSpan(mark.tint(this)), 0)
        }
        view<TextView>(R.id.legend).run {
            setText(text)
            contentDescription = getString(R.string.legend_tints)
        }
    }

    private fun showSuggestions() {
        val box = view<LinearLayout>(R.id.suggestions)
        for (id in listOf(R.string.suggestion_1, R.string.suggestion_2, R.string.suggestion_3, R.string.suggestion_4)) {
            val button = layoutInflater.inflate(R.layout.suggestion, box, false) as Button
            box.addView(button)
            button.setText(id)
            button.setOnClickListener { whenReady { it.chat.send(getString(id)) } }
        }
    }

    private fun go(screen: Class<*>) = startActivity(Intent(this, screen))

    private companion object {
        const val AT_END = "at_end"
    }
}
