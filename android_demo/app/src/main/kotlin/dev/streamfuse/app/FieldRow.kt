package dev.streamfuse.app

import android.content.Context
import android.os.Build
import android.view.LayoutInflater
import android.view.View
import android.widget.Button
import android.widget.LinearLayout
import android.widget.SeekBar
import android.widget.TextView
import dev.streamfuse.GenerationConfig
import dev.streamfuse.app.model.AppException
import dev.streamfuse.app.model.Field
import dev.streamfuse.app.model.Settings
import java.math.BigDecimal

/**
 * A number of the settings: a slider for the usual range, a button with the value that opens a field for any other, and
 * an explanation that unfolds.
 *
 * @param ask opens a field with this text, for [take].
 * @param set stores what was typed; throws AppException if it is invalid.
 */
class FieldRow(
    val field: Field,
    parent: LinearLayout,
    ask: (FieldRow, String) -> Unit,
    private val set: (Field, String) -> Unit,
) {
    private val context: Context = parent.context
    private val view = LayoutInflater.from(context).inflate(R.layout.field, parent, false)!!.also(parent::addView)
    private val value = view.findViewById<Button>(R.id.value)!!
    private val bar = view.findViewById<SeekBar>(R.id.slider)!!
    private val wrong = view.findViewById<TextView>(R.id.wrong)!!
    private var number: BigDecimal? = null

    init {
        val name = context.getString(field.label)
        view.findViewById<TextView>(R.id.label)!!.text = name
        val help = view.findViewById<TextView>(R.id.help)!!
        help.setText(field.help)
        view.findViewById<View>(R.id.explain)!!.run {
            contentDescription = context.textOf(R.string.explain_named, name)
            setOnClickListener { help.visibility = if (help.isShown) View.GONE else View.VISIBLE }
        }
        wrong.visibility = View.GONE
        value.setOnClickListener { ask(this, number?.toPlainString().orEmpty()) }
        bar.isSaveEnabled = false // what counts is in the settings
        bar.contentDescription = name
        val slider = field.slider
        if (slider == null) bar.visibility = View.GONE else bar.max = slider.last
        bar.setOnSeekBarChangeListener(object : SeekBar.OnSeekBarChangeListener {
            override fun onProgressChanged(bar: SeekBar, position: Int, fromUser: Boolean) {
                if (fromUser && slider != null) take(slider.at(position).toPlainString())
            }

            override fun onStartTrackingTouch(bar: SeekBar) = Unit

            override fun onStopTrackingTouch(bar: SeekBar) = Unit
        })
    }

    /** @param defaults the bundle's, which count where nothing is chosen. */
    fun show(settings: Settings, defaults: GenerationConfig?) {
        val chosen = settings.numbers[field]
        number = chosen
        val usual = defaults?.let(field::of)?.let { BigDecimal(it.toString()).stripTrailingZeros() }
        value.text = when {
            chosen != null -> chosen.toPlainString()
            usual != null -> context.textOf(R.string.default_value, usual.toPlainString())
            else -> context.getString(if (field == Field.THREADS) R.string.automatic else R.string.bundle_default)
        }
        value.contentDescription = context.textOf(R.string.value_named, context.getString(field.label), value.text)
        val slider = field.slider ?: return
        bar.progress = (chosen ?: usual)?.let(slider::positionOf) ?: 0
        bar.stateDescriptionOf(value.text)
    }

    /** Stores what was typed, or shows why it cannot be. */
    fun take(text: String) {
        val sentence = try {
            set(field, text)
            null
        } catch (error: AppException) {
            error.sentence
        }
        wrong.visibility = if (sentence == null) View.GONE else View.VISIBLE
        wrong.text = sentence?.let(context::textOf)
    }

    /** Without it a screen reader announces a percentage. */
    private fun SeekBar.stateDescriptionOf(words: CharSequence) {
        if (Build.VERSION.SDK_INT >= Build.VERSION_CODES.R) stateDescription = words
    }
}
