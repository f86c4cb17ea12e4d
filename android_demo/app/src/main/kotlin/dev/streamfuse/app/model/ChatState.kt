package dev.streamfuse.app.model

import dev.streamfuse.GenerationConfig
import dev.streamfuse.Message
import dev.streamfuse.Role
import dev.streamfuse.Source
import dev.streamfuse.Statistics
import kotlinx.serialization.Serializable

/** Text of consecutive tokens from the same source. */
@Serializable
data class Run(val text: String, val source: Source)

/** How an answer ended: [Statistics.finishReason], and the app's own reasons. */
object End {
    const val STOPPED = "stopped"

    /** The user left the app while it was written. */
    const val LEFT = "left"
    const val FAILED = "failed"

    /** The limit of new tokens was reached. */
    const val LENGTH = "length"

    /** The context is full. */
    const val CONTEXT = "context"
}

/**
 * A message of the conversation as it is shown.
 *
 * @property end null for the user's, and while an answer is written.
 * @property figures of an answer that has ended.
 */
@Serializable
data class Turn(val role: Role, val runs: List<Run>, val end: String? = null, val figures: Live? = null) {
    val text: String get() = runs.joinToString("") { it.text }

    /** Whether it ended by itself or at a limit of its length. */
    val isWhole: Boolean get() = end !in setOf(null, End.STOPPED, End.LEFT, End.FAILED)

    fun message() = Message(role, text)
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
 * @property chat the id of the open chat.
 * @property canChat false: the bundle only continues text.
 * @property defaults the bundle's settings; null where none is loaded.
 * @property live figures of the answer that is written, or of the last one.
 * @property unsent a text that was refused, for the input field.
 * @property replaced the turns that the answer that is written replaces; they come back if it has no token.
 */
data class ChatState(
    val phase: Phase = Phase.LOADING,
    val bundle: String? = null,
    val chat: String? = null,
    val canChat: Boolean = true,
    val defaults: GenerationConfig? = null,
    val turns: List<Turn> = emptyList(),
    val live: Live? = null,
    val error: Sentence? = null,
    val unsent: String? = null,
    val replaced: List<Turn> = emptyList(),
) {
    /** With a question after the turns [kept], whose answer begins; it replaces the other ones. */
    fun asking(question: String, kept: List<Turn>) = copy(
        phase = Phase.WRITING,
        replaced = turns.drop(kept.size),
        turns = kept + Turn(Role.USER, listOf(Run(question, Source.MODEL))) + Turn(Role.ASSISTANT, emptyList()),
        live = Live(),
        error = null,
    )

    /**
     * The answer counts as far as it was delivered; a question without any token of an answer was never asked, and goes
     * back into the input field unless it comes back into the chat. Tokens without text count, such as those of thinking:
     * the model's conversation has them.
     */
    fun ended(end: String, figures: Live?, asked: String? = null): ChatState {
        val (question, answer) = turns.takeLast(2)
        val answered = (live?.tokens ?: 0) > 0 || answer.copy(end = end).isWhole
        return copy(
            phase = Phase.READY,
            turns = turns.dropLast(2) + if (answered) listOf(question, answer.copy(end = end, figures = figures)) else replaced,
            live = if (answered || replaced.isEmpty()) figures else replaced.last().figures,
            replaced = emptyList(),
            unsent = if (answered || replaced.firstOrNull()?.text == question.text) unsent else asked ?: question.text,
        )
    }
}
