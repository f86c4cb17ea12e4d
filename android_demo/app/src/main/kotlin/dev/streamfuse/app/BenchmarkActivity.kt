package dev.streamfuse.app

import android.graphics.Color
import android.os.Build
import android.os.Bundle
import android.view.View
import android.widget.Button
import android.widget.EditText
import android.widget.LinearLayout
import android.widget.ProgressBar
import android.widget.TextView
import dev.streamfuse.app.model.AppException
import dev.streamfuse.app.model.BenchmarkModel
import dev.streamfuse.app.model.BenchmarkState
import dev.streamfuse.app.model.DeviceCheckState
import dev.streamfuse.app.model.Field
import dev.streamfuse.app.model.Measurement
import dev.streamfuse.app.model.Medians
import dev.streamfuse.app.model.Power
import dev.streamfuse.app.model.report
import dev.streamfuse.app.model.words

class BenchmarkActivity : Screen<BenchmarkState>(R.layout.benchmark, list = R.id.scroll) {
    override val state get() = parts.benchmark.state
    private var shownResult: Measurement? = null

    override fun onCreate(savedInstanceState: Bundle?) {
        super.onCreate(savedInstanceState)
        view<TextView>(R.id.help).text = formatted(R.string.benchmark_help, BenchmarkModel.REPETITIONS)
    }

    override fun onReady() {
        view<View>(R.id.run).setOnClickListener { if (state.value.running) parts.benchmark.cancel() else run() }
        view<View>(R.id.check_device).setOnClickListener { parts.check.run() }
        view<View>(R.id.share).setOnClickListener {
            share(view<TextView>(R.id.report).text.toString(), getString(R.string.report_title))
        }
        view<View>(R.id.details).setOnClickListener {
            it.shown(false)
            view<View>(R.id.report).shown(true)
        }
    }

    override suspend fun showMore() = collect(parts.check.state, ::show)

    private fun show(state: DeviceCheckState) {
        view<View>(R.id.check_device).isEnabled = !state.isRunning
        val lines = if (state.isRunning) listOf(words(R.string.checking)) else state.lines
        view<TextView>(R.id.check_result).show(lines.takeIf { it.isNotEmpty() }?.joinToString("\n") { textOf(it) })
    }

    override fun show(state: BenchmarkState) {
        view<View>(R.id.run).keepScreenOn = state.running
        view<Button>(R.id.run).setText(if (state.running) R.string.cancel else R.string.run)
        view<ProgressBar>(R.id.progress).run {
            shown(state.running)
            max = state.total
            progress = state.done
        }
        val message = state.message?.let { textOf(it) }
        view<TextView>(R.id.message).run {
            // That it is finished can be seen, and is for the ear only.
            setTextColor(if (state.result == null) getColor(R.color.text_secondary) else Color.TRANSPARENT)
            show(
                when {
                    state.running -> formatted(R.string.benchmark_progress, state.done + 1, state.total)
                    state.result != null -> getString(R.string.benchmark_finished)
                    else -> message
                },
            )
        }
        view<View>(R.id.result).shown(state.result != null)
        if (shownResult !== state.result) state.result?.let(::showResult)
        shownResult = state.result
    }

    private fun showResult(measured: Measurement) {
        val medians = Medians(measured)
        view<TextView>(R.id.headline).show(medians.speedup?.let { textOf(R.string.headline, "%.2f".format(language, it)) })
        view<TextView>(R.id.equal).setText(if (measured.equal) R.string.report_equal else R.string.report_different)
        val box = view<LinearLayout>(R.id.figures)
        box.removeAllViews()
        for ((name, value) in figuresOf(measured, medians)) {
            val row = layoutInflater.inflate(R.layout.figure, box, false)!!
            box.addView(row)
            row.findViewById<TextView>(R.id.name)!!.setText(name)
            row.findViewById<TextView>(R.id.value)!!.text = value
        }
        view<TextView>(R.id.report).text = textOf(measured)
    }

    /** Those that people ask for: without speculation, then with it. */
    private fun figuresOf(measured: Measurement, medians: Medians): List<Pair<Int, String>> = listOfNotNull(
        R.string.decode_rate to textOf(R.string.rate, fromTo("%.1f", medians.decodeTokensPerSecond)),
        R.string.time_to_first to textOf(R.string.milliseconds, fromTo("%.0f", medians.firstTokenMs)),
        R.string.prefill_rate to textOf(R.string.rate, fromTo("%.0f", medians.prefillTokensPerSecond)),
        measured.peakBytes?.let { R.string.peak_memory to sizeOf(it) },
        measured.power.takeIf { it.isNotEmpty() }?.let {
            R.string.heat to textOf(R.string.from_to, getString(it.first().heat.word), getString(it.last().heat.word))
        },
        measured.power.takeIf { it.isNotEmpty() }?.let { power ->
            val isSaving = power.any(Power::isSaving)
            R.string.battery_saver to getString(if (isSaving) R.string.speculation_on else R.string.speculation_off)
        },
    )

    private fun fromTo(format: String, values: List<Double>) =
        textOf(R.string.from_to, format.format(language, values[0]), format.format(language, values[1]))

    private fun run() {
        try {
            val tokens = Field.MAX_NEW_TOKENS.read(view<EditText>(R.id.tokens).text.toString())?.toInt() ?: DEFAULT_TOKENS
            val prompt = view<EditText>(R.id.prompt).text.toString().ifBlank { getString(R.string.benchmark_prompt) }
            parts.benchmark.run(prompt, tokens)
        } catch (error: AppException) {
            view<TextView>(R.id.message).run {
                setTextColor(getColor(R.color.text_secondary))
                show(error.sentence)
            }
        }
    }

    private fun textOf(measured: Measurement): String {
        val chip = if (Build.VERSION.SDK_INT >= 31) Build.SOC_MODEL else Build.HARDWARE
        val device = listOfNotNull(
            formatted(R.string.report_device, "${Build.MANUFACTURER} ${Build.MODEL} ($chip)"),
            formatted(R.string.report_system, Build.VERSION.RELEASE, Build.SUPPORTED_ABIS.first()),
            formatted(R.string.report_bundle, measured.bundle, measured.threads),
            measured.peakBytes?.let { formatted(R.string.report_memory, sizeOf(it)) },
            measured.power.takeIf { it.isNotEmpty() }?.let { power ->
                formatted(R.string.report_heat, getString(power.first().heat.word), getString(power.last().heat.word))
            },
            getString(R.string.report_saver).takeIf { measured.power.any(Power::isSaving) },
        )
        return report(measured, device, ::getString)
    }

    private companion object {
        const val DEFAULT_TOKENS = 128
    }
}
