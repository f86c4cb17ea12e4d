package dev.streamfuse.app

import android.content.Context
import dev.streamfuse.app.model.Live

/** The figures of an answer in words. */
class Figures(private val context: Context, private val live: Live) {
    /** The two that matter; null where nothing was measured. */
    val short: String? = listOfNotNull(
        live.tokensPerSecond?.let { context.textOf(R.string.chip_rate, "%.0f".format(context.language, it)) },
        live.speedup?.let { context.textOf(R.string.chip_speedup, "%.1f".format(context.language, it)) },
    ).joinToString(context.getString(R.string.separator)).ifEmpty { null }

    /** All of them, a line each. */
    val lines: List<String>
        get() = listOfNotNull(
            live.firstTokenMs?.let { context.textOf(R.string.first_token, "%.2f".format(context.language, it / 1000)) },
            live.tokensPerSecond?.let { context.textOf(R.string.rate, "%.1f".format(context.language, it)) },
            live.speedup?.let { context.textOf(R.string.speedup, "%.2f".format(context.language, it)) },
            live.tokensPerPass?.let { context.textOf(R.string.per_pass, "%.2f".format(context.language, it)) },
            live.proposed?.let { context.textOf(R.string.accepted_of, live.accepted, it) },
        ) + Mark.entries.mapNotNull { mark ->
            live.bySource[mark.source.name.lowercase()]?.takeIf { it > 0 }
                ?.let { context.textOf(R.string.source_row, context.getString(mark.word), it) }
        } + listOfNotNull(
            live.promptTokens?.let { tokens ->
                live.prefillTokensPerSecond?.let { context.textOf(R.string.prompt_read_at, tokens, "%.0f".format(context.language, it)) }
                    ?: context.textOf(R.string.prompt_read, tokens)
            },
            live.droppedTurns.takeIf { it > 0 }?.let { context.textOf(R.string.dropped_turns, it) },
            live.fallbackReason?.let { context.textOf(R.string.fallback, it) },
        )
}
