package dev.streamfuse.app

import android.os.Bundle
import android.view.View
import android.widget.CompoundButton
import android.widget.EditText
import android.widget.LinearLayout
import android.widget.RadioButton
import android.widget.RadioGroup
import android.widget.Switch
import android.widget.TextView
import dev.streamfuse.app.model.Field
import dev.streamfuse.app.model.Preset
import dev.streamfuse.app.model.Settings
import dev.streamfuse.app.model.Speculation

/** Changes apply at once. Invalid input shows an error next to the field and keeps the last valid value. */
class SettingsActivity : Screen<Settings>(R.layout.settings, list = R.id.scroll) {
    override val state get() = parts.settings.settings
    private var rows: List<FieldRow> = emptyList()
    private val presets = mutableMapOf<Preset, RadioButton>()
    private val speculation = mutableMapOf<Speculation, RadioButton>()

    override fun onCreate(savedInstanceState: Bundle?) {
        super.onCreate(savedInstanceState)
        for (preset in Preset.entries) presets[preset] = choice(R.id.presets, preset.word) { parts.settings.set(preset) }
        for (mode in Speculation.entries) {
            speculation[mode] = choice(R.id.speculation, mode.word) { parts.settings.set(mode) }
        }
        view<View>(R.id.more_settings).setOnClickListener {
            it.shown(false)
            view<View>(R.id.folded).shown(true)
        }
        view<View>(R.id.erased).shown(false)
    }

    override fun onReady() {
        rows = Field.entries.map { field ->
            val box = view<LinearLayout>(if (field in FIRST) R.id.fields else R.id.more_fields)
            FieldRow(field, box, ::askForNumber) { of, text -> parts.settings.set(of, text) }
        }
        view<EditText>(R.id.system_prompt).run {
            setText(state.value.systemPrompt)
            onTyped(parts.settings::setSystemPrompt)
        }
        toggle(R.id.drop_oldest, parts.settings::setDropsOldest)
        toggle(R.id.remember_answers, parts.settings::setRemembersAnswers)
        view<View>(R.id.erase_answers).setOnClickListener { askToErase() }
        view<View>(R.id.restore_defaults).setOnClickListener {
            parts.settings.clear()
            view<EditText>(R.id.system_prompt).setText("")
        }
    }

    override fun show(state: Settings) {
        val defaults = parts.chat.state.value.defaults
        rows.forEach { it.show(state, defaults) }
        presets.forEach { (preset, button) -> button.isChecked = preset.isIn(state) }
        speculation.forEach { (mode, button) -> button.isChecked = mode == state.speculation }
        view<Switch>(R.id.drop_oldest).isChecked = state.dropsOldest
        view<Switch>(R.id.remember_answers).isChecked = state.remembersAnswers
    }

    private fun choice(group: Int, word: Int, choose: () -> Unit): RadioButton {
        val box = view<RadioGroup>(group)
        val button = layoutInflater.inflate(R.layout.choice, box, false) as RadioButton
        box.addView(button)
        button.id = View.generateViewId()
        button.isSaveEnabled = false // what counts is in the settings
        button.setText(word)
        button.setOnClickListener { whenReady { choose() } }
        return button
    }

    private fun toggle(id: Int, set: (Boolean) -> Unit) = view<CompoundButton>(id).run {
        isSaveEnabled = false
        setOnCheckedChangeListener { _, on -> set(on) }
    }

    private fun askForNumber(row: FieldRow, text: String) =
        askFor(row.field.label, row.field.name, text, R.string.save, row.field.help, row::take)

    override fun askAgain(title: Int, about: String, text: String) {
        if (title == R.string.erase_answers_question) askToErase()
        rows.firstOrNull { it.field.name == about }?.let { askForNumber(it, text) }
    }

    private fun askToErase() = askWhether(R.string.erase_answers_question, "", R.string.erase) {
        view<View>(R.id.erased).shown(false)
        whenReady { view<TextView>(R.id.erased).show(it.chat.forgetAnswers().await()) }
    }

    private companion object {
        val FIRST = setOf(Field.TEMPERATURE, Field.MAX_NEW_TOKENS)
    }
}
