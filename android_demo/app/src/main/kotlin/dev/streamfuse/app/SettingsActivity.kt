package dev.streamfuse.app

import android.os.Bundle
import android.text.Editable
import android.text.InputType
import android.text.TextWatcher
import android.view.View
import android.widget.EditText
import android.widget.LinearLayout
import android.widget.RadioGroup
import android.widget.TextView
import dev.streamfuse.app.model.AppException
import dev.streamfuse.app.model.Field
import dev.streamfuse.app.model.Sentence
import dev.streamfuse.app.model.Settings
import dev.streamfuse.app.model.Speculation

/** What is typed counts at once where it is right; what is wrong is said beside it, and the last right value stays. */
class SettingsActivity : Screen<Settings>(R.layout.settings) {
    override val state get() = parts.settings.settings
    private val rows = mutableMapOf<Field, View>()
    private val radios = mapOf(
        Speculation.AUTO to R.id.speculation_auto,
        Speculation.ON to R.id.speculation_on,
        Speculation.OFF to R.id.speculation_off,
    )

    override fun onCreate(savedInstanceState: Bundle?) {
        super.onCreate(savedInstanceState)
        val fields = view<LinearLayout>(R.id.fields)
        for (field in Field.entries) rows[field] = row(field, fields)
    }

    override fun onReady() {
        fill()
        // Only now, so that what is filled in does not count as typed.
        for ((field, row) in rows) input(row).onTyped { typed(field, row, it) }
        view<EditText>(R.id.system_prompt).onTyped(parts.settings::setSystemPrompt)
        view<RadioGroup>(R.id.speculation).setOnCheckedChangeListener { _, id ->
            radios.entries.firstOrNull { it.value == id }?.let { parts.settings.set(it.key) }
        }
        view<View>(R.id.restore_defaults).setOnClickListener {
            parts.settings.clear()
            fill()
        }
    }

    /** The fields are the user's: nothing is written into them while one types. */
    override fun show(state: Settings) = Unit

    private fun fill() {
        val settings = state.value
        view<EditText>(R.id.system_prompt).setText(settings.systemPrompt)
        view<RadioGroup>(R.id.speculation).check(radios.getValue(settings.speculation))
        for ((field, row) in rows) input(row).setText(settings.numbers[field]?.toPlainString().orEmpty())
    }

    private fun row(field: Field, parent: LinearLayout): View {
        val row = layoutInflater.inflate(R.layout.field, parent, false)!!
        parent.addView(row)
        val input = input(row)
        input.id = View.generateViewId()
        input.isSaveEnabled = false // what counts is in the settings
        input.setHint(if (field == Field.THREADS) R.string.automatic else R.string.bundle_default)
        input.inputType = InputType.TYPE_CLASS_NUMBER or if (field.whole) 0 else InputType.TYPE_NUMBER_FLAG_DECIMAL
        row.findViewById<TextView>(R.id.label)!!.run {
            setText(field.label)
            labelFor = input.id
        }
        row.findViewById<TextView>(R.id.help)!!.setText(field.help)
        row.findViewById<TextView>(R.id.wrong)!!.say(null)
        return row
    }

    private fun typed(field: Field, row: View, text: String) {
        var wrong: Sentence? = null
        try {
            parts.settings.set(field, text)
        } catch (error: AppException) {
            wrong = error.sentence
        }
        row.findViewById<TextView>(R.id.wrong)!!.say(wrong)
    }

    private fun input(row: View): EditText = (row as LinearLayout).getChildAt(1) as EditText

    private fun EditText.onTyped(take: (String) -> Unit) = addTextChangedListener(object : TextWatcher {
        override fun beforeTextChanged(text: CharSequence?, start: Int, count: Int, after: Int) = Unit

        override fun onTextChanged(text: CharSequence?, start: Int, before: Int, count: Int) = Unit

        override fun afterTextChanged(text: Editable) = take(text.toString())
    })
}
