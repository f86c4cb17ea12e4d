package dev.streamfuse.app

import android.content.Intent
import android.os.Build
import android.os.Bundle
import android.view.View
import android.widget.Button
import android.widget.EditText
import android.widget.ProgressBar
import android.widget.TextView
import dev.streamfuse.app.model.AppException
import dev.streamfuse.app.model.BenchmarkModel
import dev.streamfuse.app.model.BenchmarkState
import dev.streamfuse.app.model.Field
import dev.streamfuse.app.model.Measurement
import dev.streamfuse.app.model.Power
import dev.streamfuse.app.model.ReportWords
import dev.streamfuse.app.model.report

class BenchmarkActivity : Screen<BenchmarkState>(R.layout.benchmark) {
    override val state get() = parts.benchmark.state

    override fun onCreate(savedInstanceState: Bundle?) {
        super.onCreate(savedInstanceState)
        view<TextView>(R.id.help).text = getString(R.string.benchmark_help, BenchmarkModel.REPETITIONS)
    }

    override fun onReady() {
        view<View>(R.id.run).setOnClickListener { if (state.value.running) parts.benchmark.cancel() else run() }
        view<View>(R.id.share).setOnClickListener { share() }
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
        view<TextView>(R.id.message).show(
            when {
                state.running -> getString(R.string.benchmark_progress, state.done + 1, state.total)
                state.result != null -> getString(R.string.benchmark_finished)
                else -> message
            },
        )
        view<TextView>(R.id.report).show(state.result?.let(::textOf))
        view<View>(R.id.share).shown(state.result != null)
    }

    private fun run() {
        try {
            val tokens = Field.MAX_NEW_TOKENS.read(view<EditText>(R.id.tokens).text.toString())?.toInt() ?: DEFAULT_TOKENS
            val prompt = view<EditText>(R.id.prompt).text.toString().ifBlank { getString(R.string.benchmark_prompt) }
            parts.benchmark.run(prompt, tokens)
        } catch (error: AppException) {
            view<TextView>(R.id.message).say(error.sentence)
        }
    }

    private fun share() {
        val text = Intent(Intent.ACTION_SEND).setType("text/plain")
            .putExtra(Intent.EXTRA_SUBJECT, getString(R.string.report_title))
            .putExtra(Intent.EXTRA_TEXT, view<TextView>(R.id.report).text.toString())
        startActivity(Intent.createChooser(text, getString(R.string.share)))
    }

    private fun textOf(measured: Measurement): String {
        val chip = if (Build.VERSION.SDK_INT >= 31) Build.SOC_MODEL else Build.HARDWARE
        return report(
            measured,
            listOfNotNull(
                getString(R.string.report_device, "${Build.MANUFACTURER} ${Build.MODEL} ($chip)"),
                getString(R.string.report_system, Build.VERSION.RELEASE, Build.SUPPORTED_ABIS.first()),
                getString(R.string.report_bundle, measured.bundle, measured.threads),
                measured.power.takeIf { it.isNotEmpty() }?.let { power ->
                    getString(R.string.report_heat, getString(power.first().heat.word), getString(power.last().heat.word))
                },
                getString(R.string.report_saver).takeIf { measured.power.any(Power::isSaving) },
            ),
            ReportWords(
                title = getString(R.string.report_title),
                plain = getString(R.string.report_plain),
                speculative = getString(R.string.report_speculative),
                tokensPerSecond = getString(R.string.report_rate),
                fastest = getString(R.string.report_fastest),
                slowest = getString(R.string.report_slowest),
                firstToken = getString(R.string.report_first_token),
                tokensPerPass = getString(R.string.report_per_pass),
                accepted = getString(R.string.report_accepted),
                tokens = getString(R.string.report_tokens),
                speedup = getString(R.string.report_speedup),
                equal = getString(R.string.report_equal),
                different = getString(R.string.report_different),
                fallback = getString(R.string.report_fallback),
            ),
        )
    }

    private companion object {
        const val DEFAULT_TOKENS = 128
    }
}
