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

/**
 * Shows the answer that [write] produces, at most thirty times a second, and how it ended.
 *
 * @param clock nanoseconds.
 * @param asked the question, which returns to the input field if there is no answer.
 * @param write calls `add` for each piece. What it throws ends the answer as [End.FAILED].
 */
suspend fun MutableStateFlow<ChatState>.answer(
    clock: () -> Long,
    asked: String,
    write: suspend (add: (Piece) -> Unit) -> Ending,
) {
    val answer = GrowingAnswer(Meter(clock()))
    try {
        val ending = coroutineScope {
            // Tokens arrive faster than the screen is drawn, and each state copies the list of turns.
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

/** How an answer ended: a finish reason of the library or of [End], and its figures. */
class Ending(val reason: String, val figures: Live?)

/**
 * Generates an answer and calls [add] for each piece.
 *
 * @param stopping the reason to stop early; null: go on. One that is there at the start leaves the prompt unread.
 */
suspend fun OpenSession.generate(
    asked: String,
    config: GenerationConfig,
    stopping: () -> String?,
    add: (Piece) -> Unit,
): Ending {
    stopping()?.let { return Ending(it, null) }
    send(asked, config).collect { piece ->
        add(piece)
        if (stopping() != null) stop() // also if it was requested before the first token
    }
    val end = statistics?.finishReason.orEmpty()
    return Ending(if (end == End.STOPPED) stopping() ?: end else end, statistics?.let { Live.of(it) })
}

/** An answer while it is generated: one thread adds pieces, in time proportional to their text; another reads them. */
class GrowingAnswer(private val meter: Meter) {
    private val whole = mutableListOf<Run>()
    private val last = StringBuilder() // text of the run that may still grow
    private var source = Source.MODEL
    private var live = Live()
    private var isNew = false // whether [shownIn] has not returned all pieces

    /** True for the first piece since [shownIn]. [now] in nanoseconds. */
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

    /** [state] with the answer so far. Runs that have not grown are the same objects each time. */
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
 * @property tokensPerPass mean number of tokens per pass of the model.
 * @property accepted drafted tokens that the model accepted, of [proposed].
 * @property speedup decoding speed, divided by that of plain passes at their measured latency.
 * @property bySource accepted tokens by the name of their source.
 * @property droppedTurns old turns that were dropped to make room for this one.
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
        val passes = tokens - accepted // each pass ends with one token that was not drafted
        return Live(
            tokens = tokens,
            firstTokenMs = if (tokens > 0) (first - began) / 1e6 else null,
            tokensPerSecond = if (tokens > 1 && now > first) (tokens - 1) * 1e9 / (now - first) else null,
            tokensPerPass = if (passes > 0) tokens.toDouble() / passes else null,
            accepted = accepted,
        )
    }
}
