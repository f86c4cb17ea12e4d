package dev.streamfuse.app.model

import dev.streamfuse.Channel
import dev.streamfuse.Message
import dev.streamfuse.Piece
import dev.streamfuse.Role
import dev.streamfuse.Source
import dev.streamfuse.Statistics
import kotlinx.serialization.Serializable

/** Text of neighbouring tokens that the same source proposed. */
@Serializable
data class Run(val text: String, val source: Source)

/** How an answer ended: the library's finish reasons, and the app's own. */
object End {
    const val STOPPED = "stopped"

    /** The user left the app while it was written. */
    const val LEFT = "left"
    const val FAILED = "failed"
}

/** A message of the conversation as it is shown. [end] is null for the user's, and while an answer is written. */
@Serializable
data class Turn(val role: Role, val runs: List<Run>, val end: String? = null) {
    val text: String get() = runs.joinToString("") { it.text }

    fun message() = Message(role, text)

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

/** What the statistics line shows; null: not known yet. */
data class Live(
    val tokens: Int = 0,
    val firstTokenMs: Double? = null,
    val tokensPerSecond: Double? = null,
    val tokensPerPass: Double? = null,
    val accepted: Int = 0,
    val proposed: Int? = null,
    val fallbackReason: String? = null,
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

enum class Phase {
    /** Nothing is chosen. */
    NO_BUNDLE,
    LOADING,
    READY,
    WRITING,

    /** The benchmark has the model. */
    LENT,

    /** The chosen bundle could not be loaded. */
    FAILED,
}

/**
 * The chat screen.
 *
 * @property canChat false: the bundle only continues text.
 * @property unsent a text that was refused, for the input field.
 */
data class ChatState(
    val phase: Phase = Phase.LOADING,
    val bundle: String? = null,
    val canChat: Boolean = true,
    val turns: List<Turn> = emptyList(),
    val live: Live? = null,
    val error: Sentence? = null,
    val unsent: String? = null,
)
