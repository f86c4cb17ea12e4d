package dev.streamfuse.app

import android.app.Activity
import android.app.AlertDialog
import android.os.Bundle
import android.text.Editable
import android.text.TextWatcher
import android.view.MenuItem
import android.view.View
import android.view.ViewGroup
import android.widget.EditText
import android.widget.TextView
import android.widget.Toolbar
import dev.streamfuse.app.model.Sentence
import kotlinx.coroutines.CoroutineScope
import kotlinx.coroutines.Dispatchers
import kotlinx.coroutines.Job
import kotlinx.coroutines.SupervisorJob
import kotlinx.coroutines.cancel
import kotlinx.coroutines.delay
import kotlinx.coroutines.flow.StateFlow
import kotlinx.coroutines.launch

private const val FRAME_MS = 33L

/**
 * What all screens have: a bar with a way back, and a state that is shown while the screen is visible.
 *
 * The first screen of a process comes before the app's parts, which read files on another thread.
 *
 * @param list the id of a view that scrolls down to the lower edge of the window.
 */
abstract class Screen<State>(private val layout: Int, private val list: Int? = null) : Activity() {
    private val alive = CoroutineScope(SupervisorJob() + Dispatchers.Main.immediate)
    private var started = false
    private var showing: Job? = null
    private var made: Parts? = null
    private var unasked: Bundle? = null // what the screen asked for before it was turned, until the parts are there
    private var asked: Asked? = null

    private class Asked(val title: Int, val about: String, val dialog: AlertDialog) {
        fun state() = Bundle().also {
            it.putInt(TITLE, title)
            it.putString(ABOUT, about)
            it.putString(TEXT, dialog.findViewById<EditText>(R.id.field)?.text?.toString())
        }
    }

    /** There from [onReady] on. */
    protected val parts: Parts get() = made!!

    protected abstract val state: StateFlow<State>

    /** The parts are there, and the state that the screen had saved is restored: set listeners here. */
    protected open fun onReady() = Unit

    /** The screen becomes visible, and the parts are there. */
    protected open fun onVisible() = Unit

    protected abstract fun show(state: State)

    /**
     * Asks for a text in a dialog. If the screen is turned meanwhile, [askAgain] goes on with what was typed.
     *
     * @param about what the text is for, where several things have the same [title].
     */
    protected fun askFor(title: Int, about: String, text: String, done: Int, help: Int? = null, take: (String) -> Unit) {
        asked = Asked(title, about, askForText(title, text, done, help, take))
    }

    /** Asks in a dialog whether to [act] on [about], the argument of [question]; asked again after a rotation. */
    protected fun askWhether(question: Int, about: String, done: Int, act: () -> Unit) {
        val dialog = AlertDialog.Builder(this)
            .setMessage(textOf(question, about))
            .setPositiveButton(done) { _, _ -> act() }
            .setNegativeButton(R.string.cancel, null)
            .show()
        asked = Asked(question, about, dialog)
    }

    /** Shows all figures of an answer in a dialog, which is shown again after a rotation. */
    protected fun showFigures(lines: String) {
        val dialog = AlertDialog.Builder(this)
            .setTitle(R.string.figures)
            .setMessage(lines)
            .setPositiveButton(R.string.close, null)
            .show()
        asked = Asked(R.string.figures, lines, dialog)
    }

    /** Asks for another title of a chat. */
    protected fun askForTitle(chat: String, title: String) =
        askFor(R.string.title, chat, title, R.string.save) { parts.chats.rename(chat, it) }

    /** Opens the dialog again that was open before a rotation; [text] was typed into it. The parts are there. */
    protected open fun askAgain(title: Int, about: String, text: String) {
        if (title == R.string.title) askForTitle(about, text)
        if (title == R.string.figures) showFigures(about)
    }

    /** Now, or as soon as the parts are there. */
    protected fun whenReady(work: suspend (Parts) -> Unit) {
        alive.launch { work((application as App).parts()) }
    }

    override fun onCreate(savedInstanceState: Bundle?) {
        super.onCreate(savedInstanceState)
        unasked = savedInstanceState?.getBundle(ASKED)
        setContentView(layout)
        window.keepClear(view<ViewGroup>(android.R.id.content).getChildAt(0), list?.let { view(it) })
        setActionBar(view<Toolbar>(R.id.bar))
        if (parentActivityIntent != null) {
            actionBar!!.setDisplayHomeAsUpEnabled(true)
            actionBar!!.setHomeAsUpIndicator(R.drawable.back)
            actionBar!!.setHomeActionContentDescription(R.string.back)
        }
    }

    override fun onPostCreate(savedInstanceState: Bundle?) {
        super.onPostCreate(savedInstanceState)
        whenReady {
            made = it
            it.chat.wake()
            onReady()
            askAgain()
            if (started) beginShowing()
        }
    }

    private fun askAgain() {
        val before = unasked ?: return
        unasked = null
        askAgain(before.getInt(TITLE), before.getString(ABOUT).orEmpty(), before.getString(TEXT).orEmpty())
    }

    /** With the open dialog and the text that is being typed into it. */
    override fun onSaveInstanceState(outState: Bundle) {
        super.onSaveInstanceState(outState)
        val open = asked?.takeIf { it.dialog.isShowing }
        outState.putBundle(ASKED, if (open == null) unasked else open.state())
    }

    override fun onStart() {
        super.onStart()
        started = true
        if (made != null) beginShowing()
    }

    private fun beginShowing() {
        onVisible()
        showing = alive.launch {
            launch { showMore() }
            collect(state, ::show)
        }
    }

    /** Shows other states than the screen's own, while it is visible. */
    protected open suspend fun showMore() = Unit

    /** Tokens arrive faster than the screen is drawn, so states in between are skipped. */
    protected suspend fun <T> collect(states: StateFlow<T>, show: (T) -> Unit) {
        states.collect {
            show(it)
            delay(FRAME_MS)
        }
    }

    override fun onStop() {
        started = false
        showing?.cancel()
        super.onStop()
    }

    override fun onDestroy() {
        alive.cancel()
        asked?.dialog?.dismiss()
        super.onDestroy()
    }

    override fun onOptionsItemSelected(item: MenuItem): Boolean {
        if (item.itemId != android.R.id.home) return super.onOptionsItemSelected(item)
        finish()
        return true
    }

    protected fun <V : View> view(id: Int): V = findViewById<V>(id)!!

    /** Shows a sentence; null hides the view. */
    protected fun TextView.show(sentence: Sentence?) = show(sentence?.let { textOf(it) })

    /** Shows text; null hides the view. Unchanged text is not set again, or a screen reader would repeat it. */
    protected fun TextView.show(words: String?) {
        shown(words != null)
        if (words != null && text.toString() != words) text = words
    }

    protected fun View.shown(shown: Boolean) {
        visibility = if (shown) View.VISIBLE else View.GONE
    }

    private companion object {
        const val ASKED = "asked"
        const val TITLE = "title"
        const val ABOUT = "about"
        const val TEXT = "text"
    }
}

/** Calls [take] after each change of the text. */
fun EditText.onTyped(take: (String) -> Unit) = addTextChangedListener(object : TextWatcher {
    override fun beforeTextChanged(text: CharSequence?, start: Int, count: Int, after: Int) = Unit

    override fun onTextChanged(text: CharSequence?, start: Int, before: Int, count: Int) = Unit

    override fun afterTextChanged(text: Editable) = take(text.toString())
})
