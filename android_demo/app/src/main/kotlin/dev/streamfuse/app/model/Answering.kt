package dev.streamfuse.app.model

import dev.streamfuse.Channel
import dev.streamfuse.GenerationConfig
import dev.streamfuse.Piece
import dev.streamfuse.Source
import dev.streamfuse.Statistics
import kotlinx.coroutines.CancellationException
import kotlinx.coroutines.cancelChildren
import kotlinx.coroutines.coroutineScope
import kotlinx.coroutines.delay
import kotlinx.coroutines.flow.MutableStateFlow
import kotlinx.coroutines.flow.update
import kotlinx.coroutines.launch
import kotlinx.serialization.Serializable

private const val SHOW_MS = 33L

/** Shows an answer as [write] adds to it, thirty times a second at most, and how it ended. */
suspend fun MutableStateFlow<ChatState>.answer(
    clock: () -> Long,
    asked: String,
    write: suspend (Growing) -> Ending,
) {
    val answer = GrowingAnswer(Meter(clock()))
    try {
        val ending = coroutineScope {
            // Tokens come faster than a screen can be drawn, and each state costs a list of what was said.
            val ending = write { piece ->
                if (answer.add(piece, clock())) {
                    launch {
                        delay(SHOW_MS)
                        update(answer::shownIn)
                    }
                }
            }
            coroutineContext.cancelChildren()
            ending
        }
        update { answer.shownIn(it).ended(ending.reason, ending.figures) }
    } catch (error: CancellationException) {
        throw error
    } catch (error: Throwable) {
        update { state ->
            answer.shownIn(state).run { ended(End.FAILED, live, asked) }.copy(error = sentenceOf(error))
        }
    }
}

fun interface Growing {
    fun add(piece: Piece)
}

class Ending(val reason: String, val figures: Live?)

/** Writes an answer, which ends early where [stopping] says why. */
suspend fun OpenSession.writeInto(
    answer: Growing,
    asked: String,
    config: GenerationConfig,
    stopping: () -> String?,
): Ending {
    send(asked, config).collect { piece ->
        answer.add(piece)
        if (stopping() != null) stop() // also where it was asked before the first token
    }
    val end = statistics?.finishReason.orEmpty()
    return Ending(if (end == End.STOPPED) stopping() ?: end else end, statistics?.let { Live.of(it) })
}

/** An answer as it grows. One thread adds pieces, another takes what there is; a piece costs as much as its text. */
class GrowingAnswer(private val meter: Meter) {
    private val whole = mutableListOf<Run>()
    private val last = StringBuilder() // text of the run that may go on
    private var source = Source.MODEL
    private var live = Live()
    private var isNew = false // something that [shownIn] has not given yet

    /** Whether it is the first since [shownIn]. */
    @Synchronized
    fun add(piece: Piece, now: Long): Boolean {
        live = meter.count(piece, now)
        take(piece)
        return !isNew.also { isNew = true }
    }

    private fun take(piece: Piece) {
        if (piece.text.isEmpty() || piece.channel != Channel.ANSWER) return
        if (piece.source != source && last.isNotEmpty()) {
            whole += Run(last.toString(), source)
            last.clear()
        }
        source = piece.source
        last.append(piece.text)
    }

    /** [state] with the answer as it is. Runs that have not grown are the same objects each time. */
    @Synchronized
    fun shownIn(state: ChatState): ChatState {
        isNew = false
        val runs = if (last.isEmpty()) whole.toList() else whole + Run(last.toString(), source)
        return state.copy(turns = state.turns.dropLast(1) + state.turns.last().copy(runs = runs), live = live)
    }
}

/**
 * Figures of an answer; null: not known yet.
 *
 * @property speedup over plain passes, whose number per second follows from what one was measured to cost.
 * @property droppedTurns old turns that made room for this one.
 */
@Serializable
data class Live(
    val tokens: Int = 0,
    val firstTokenMs: Double? = null,
    val tokensPerSecond: Double? = null,
    val tokensPerPass: Double? = null,
    val accepted: Int = 0,
    val proposed: Int? = null,
    val fallbackReason: String? = null,
    val speedup: Double? = null,
    val bySource: Map<String, Int> = emptyMap(),
    val promptTokens: Int? = null,
    val prefillTokensPerSecond: Double? = null,
    val droppedTurns: Int = 0,
) {
    companion object {
        /** The library's own figures, once an answer has ended. */
        fun of(statistics: Statistics) = Live(
            tokens = statistics.generatedTokens,
            firstTokenMs = statistics.firstTokenMs,
            tokensPerSecond = statistics.decodeTokensPerSecond,
            tokensPerPass = statistics.meanAcceptedTokens,
            accepted = statistics.draftTokensAccepted,
            proposed = statistics.draftTokensProposed,
            fallbackReason = statistics.fallbackReason,
            speedup = statistics.costMs["decode"]?.takeIf { statistics.draftTokensAccepted > 0 && it > 0 }
                ?.let { it / 1000 * statistics.decodeTokensPerSecond },
            bySource = statistics.acceptedBySource,
            promptTokens = statistics.promptTokens,
            prefillTokensPerSecond = statistics.prefillTokensPerSecond.takeIf { statistics.prefilledTokens > 0 },
            droppedTurns = statistics.droppedTurns,
        )
    }
}

/** Counts while an answer is written, before the library gives its own figures. Times are nanoseconds of one clock. */
class Meter(private val began: Long) {
    private var first = 0L
    private var tokens = 0
    private var accepted = 0

    fun count(piece: Piece, now: Long): Live {
        if (piece.token != null) {
            if (tokens == 0) first = now
            tokens++
            if (piece.drafted) accepted++
        }
        val passes = tokens - accepted // each pass ends with one token of the model's own
        return Live(
            tokens = tokens,
            firstTokenMs = if (tokens > 0) (first - began) / 1e6 else null,
            tokensPerSecond = if (tokens > 1 && now > first) (tokens - 1) * 1e9 / (now - first) else null,
            tokensPerPass = if (passes > 0) tokens.toDouble() / passes else null,
            accepted = accepted,
        )
    }
}
