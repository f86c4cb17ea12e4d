package dev.streamfuse.app.model

import dev.streamfuse.Statistics
import java.util.Locale

/** Names of the rows of a benchmark's table, out of the app's words. */
data class ReportWords(
    val title: String,
    val plain: String,
    val speculative: String,
    val tokensPerSecond: String,
    val fastest: String,
    val slowest: String,
    val firstToken: String,
    val tokensPerPass: String,
    val accepted: String,
    val tokens: String,
    val speedup: String,
    val equal: String,
    val different: String,
    val fallback: String,
)

/** A benchmark as text that can be shared. [device] names the device, a line each. Medians, if not said otherwise. */
fun report(measured: Measurement, device: List<String>, words: ReportWords): String {
    fun row(name: String, format: String, ofRuns: (List<Statistics>) -> Double): List<String> =
        listOf(name) + listOf(measured.plain, measured.speculative).map { runs ->
            String.format(Locale.ROOT, format, ofRuns(runs.map { it.statistics }))
        }
    val rows = listOf(
        listOf("", words.plain, words.speculative),
        row(words.tokensPerSecond, "%.1f") { it.medianOf(Statistics::decodeTokensPerSecond) },
        row(words.slowest, "%.1f") { runs -> runs.minOf { it.decodeTokensPerSecond } },
        row(words.fastest, "%.1f") { runs -> runs.maxOf { it.decodeTokensPerSecond } },
        row(words.firstToken, "%.0f") { it.medianOf(Statistics::firstTokenMs) },
        row(words.tokensPerPass, "%.2f") { it.medianOf(Statistics::meanAcceptedTokens) },
        row(words.accepted, "%.0f %%") { 100 * it.medianOf(Statistics::acceptanceRate) },
        row(words.tokens, "%.0f") { runs -> runs.medianOf { it.generatedTokens.toDouble() } },
    )
    val plain = measured.plain.map { it.statistics }.medianOf(Statistics::decodeTokensPerSecond)
    val speculative = measured.speculative.map { it.statistics }.medianOf(Statistics::decodeTokensPerSecond)
    return buildString {
        appendLine(words.title)
        device.forEach(::appendLine)
        appendLine()
        append(table(rows))
        appendLine()
        if (plain > 0) appendLine(String.format(Locale.ROOT, "%s: %.2f", words.speedup, speculative / plain))
        appendLine(if (measured.equal) words.equal else words.different)
        measured.speculative.firstNotNullOfOrNull { it.statistics.fallbackReason }
            ?.let { appendLine(wrapped("${words.fallback}: $it")) }
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

private fun List<Statistics>.medianOf(value: (Statistics) -> Double): Double = map(value).sorted()[size / 2]
