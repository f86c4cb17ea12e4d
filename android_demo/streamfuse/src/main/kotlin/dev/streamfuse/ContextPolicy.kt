package dev.streamfuse

/** What happens in a chat when the next question does not fit into the context: [Model.chat]. */
public enum class ContextPolicy { // in the order of streamfuse_core.h
    /** The question is refused with [ErrorCode.CONTEXT_FULL], and the conversation is unchanged. */
    FAIL,

    /**
     * The oldest turns are dropped, as few as leave [GenerationConfig.maxNewTokens] for the answer (a quarter of the
     * context if that is not smaller than the context), and the others are prefilled again. A turn is a question with
     * all that follows it: the answer, tool calls and results. The system message and the tools are kept. Dropped turns
     * are no longer part of [Chat.messages]; [Statistics.droppedTurns] has their number. [ErrorCode.CONTEXT_FULL] is
     * then only the error of a question that exceeds the context by itself.
     */
    DROP_OLDEST,
}
