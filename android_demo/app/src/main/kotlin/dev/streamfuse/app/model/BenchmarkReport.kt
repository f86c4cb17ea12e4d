package dev.streamfuse.app.model

import dev.streamfuse.Statistics
import dev.streamfuse.app.R
import java.util.Locale

/** Medians of a benchmark's answers: first without speculation, then with it. */
class Medians(measured: Measurement) {
    private val runs = listOf(measured.plain, measured.speculative).map { answers -> answers.map { it.statistics } }
    val decodeTokensPerSecond = of(Statistics::decodeTokensPerSecond)
    val prefillTokensPerSecond = of(Statistics::prefillTokensPerSecond)
    val firstTokenMs = of(Statistics::firstTokenMs)

    /** How many times as fast speculation is; null where nothing was written. */
    val speedup: Double? = decodeTokensPerSecond.let { (plain, speculative) -> if (plain > 0) speculative / plain else null }

    fun of(value: (Statistics) -> Double): List<Double> = runs.map { run -> run.map(value).sorted()[run.size / 2] }

    /** One number of each of both kinds of answers. */
    fun each(ofRuns: (List<Statistics>) -> Double): List<Double> = runs.map(ofRuns)
}

/**
 * A benchmark as text to share. Figures are medians unless stated otherwise.
 *
 * @param device lines that describe the device.
 * @param word the string resource of an id.
 */
fun report(measured: Measurement, device: List<String>, word: (Int) -> String): String {
    val medians = Medians(measured)
    fun row(name: Int, format: String, values: List<Double>) =
        listOf(word(name)) + values.map { String.format(Locale.ROOT, format, it) }
    val rows = listOf(
        listOf("", word(R.string.report_plain), word(R.string.report_speculative)),
        row(R.string.report_rate, "%.1f", medians.decodeTokensPerSecond),
        row(R.string.report_slowest, "%.1f", medians.each { runs -> runs.minOf { it.decodeTokensPerSecond } }),
        row(R.string.report_fastest, "%.1f", medians.each { runs -> runs.maxOf { it.decodeTokensPerSecond } }),
        row(R.string.report_first_token, "%.0f", medians.firstTokenMs),
        row(R.string.report_prefill, "%.0f", medians.prefillTokensPerSecond),
        row(R.string.report_per_pass, "%.2f", medians.of(Statistics::meanAcceptedTokens)),
        row(R.string.report_accepted, "%.0f %%", medians.of { 100 * it.acceptanceRate }),
        row(R.string.report_tokens, "%.0f", medians.of { it.generatedTokens.toDouble() }),
    )
    return buildString {
        appendLine(word(R.string.report_title))
        device.forEach(::appendLine)
        appendLine()
        append(table(rows))
        appendLine()
        medians.speedup?.let { appendLine(String.format(Locale.ROOT, "%s: %.2f", word(R.string.report_speedup), it)) }
        appendLine(word(if (measured.equal) R.string.report_equal else R.string.report_different))
        measured.speculative.firstNotNullOfOrNull { it.statistics.fallbackReason }
            ?.let { appendLine(wrapped("${word(R.string.report_fallback)}: $it")) }
    }
}

private fun table(rows: List<List<String>>): String {
    val widths = rows.first().indices.map { column -> rows.maxOf { it[column].length } }
    return rows.joinToString("\n", postfix = "\n") { row ->
        row.mapIndexed { column, cell ->
            if (column == 0) cell.padEnd(widths[0]) else cell.padStart(widths[column])
        }.joinToString("  ").trimEnd()
    }
}

/** Lines no longer than those of the table. */
private fun wrapped(text: String): String = text.split(' ').reduce { lines, word ->
    if (lines.substringAfterLast('\n').length + word.length < LINE_LENGTH) "$lines $word" else "$lines\n$word"
}

private const val LINE_LENGTH = 40
