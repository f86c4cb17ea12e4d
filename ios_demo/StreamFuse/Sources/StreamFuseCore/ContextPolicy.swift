/// What happens in a chat when the next question does not fit into the context: `Model.chat`.
public enum ContextPolicy: Int32, Sendable {  // the numbers of streamfuse_core.h
  /// The question is refused with `StreamFuseError.Code.contextFull`, and the conversation is unchanged.
  case fail = 0
  /// The oldest turns are dropped, as few as leave `maxNewTokens` for the answer (a quarter of the context if that is not
  /// smaller than the context), and the others are prefilled again. A turn is a question with all that follows it: the
  /// answer, tool calls and results. The instructions and the tools are kept. Dropped turns are no longer part of
  /// `Chat.messages`; `Statistics.droppedTurns` has their number. `contextFull` is then only the error of a question that
  /// exceeds the context by itself.
  case dropOldest = 1
}
