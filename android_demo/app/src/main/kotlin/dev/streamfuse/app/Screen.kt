package dev.streamfuse.app

import android.app.Activity
import android.content.Context
import android.os.Bundle
import android.view.MenuItem
import android.view.View
import android.widget.TextView
import android.widget.Toolbar
import dev.streamfuse.app.model.Sentence
import kotlinx.coroutines.CoroutineScope
import kotlinx.coroutines.MainScope
import kotlinx.coroutines.cancel
import kotlinx.coroutines.delay
import kotlinx.coroutines.flow.StateFlow
import kotlinx.coroutines.launch

private const val FRAME_MS = 16L

/** What all screens have: a bar with a way back, and a state that is shown while the screen is visible. */
abstract class Screen<State>(private val layout: Int) : Activity() {
    private var visible: CoroutineScope? = null

    protected val parts: Parts get() = (application as App).parts

    protected abstract val state: StateFlow<State>

    protected abstract fun show(state: State)

    override fun onCreate(savedInstanceState: Bundle?) {
        super.onCreate(savedInstanceState)
        setContentView(layout)
        setActionBar(view<Toolbar>(R.id.bar))
        if (parentActivityIntent != null) {
            actionBar!!.setDisplayHomeAsUpEnabled(true)
            actionBar!!.setHomeAsUpIndicator(R.drawable.back)
            actionBar!!.setHomeActionContentDescription(R.string.back)
        }
    }

    override fun onStart() {
        super.onStart()
        visible = MainScope().also { scope ->
            scope.launch {
                state.collect {
                    show(it)
                    delay(FRAME_MS) // tokens come faster than a screen can be drawn; the latest state is drawn next
                }
            }
        }
    }

    override fun onStop() {
        visible?.cancel()
        super.onStop()
    }

    override fun onOptionsItemSelected(item: MenuItem): Boolean {
        if (item.itemId != android.R.id.home) return super.onOptionsItemSelected(item)
        finish()
        return true
    }

    protected fun <V : View> view(id: Int): V = findViewById<V>(id)!!

    /** Shows a sentence; without one the view is away. */
    protected fun TextView.say(sentence: Sentence?) = show(sentence?.let { textOf(it) })

    /** Shows text; without any the view is away. What has not changed is not announced again. */
    protected fun TextView.show(words: String?) {
        shown(words != null)
        if (words != null && text.toString() != words) text = words
    }

    protected fun View.shown(shown: Boolean) {
        visibility = if (shown) View.VISIBLE else View.GONE
    }
}

fun Context.textOf(sentence: Sentence): String = when (sentence) {
    is Sentence.Said -> sentence.text
    is Sentence.Words -> getString(sentence.id, *sentence.arguments.toTypedArray())
}
