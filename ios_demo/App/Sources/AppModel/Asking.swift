import Foundation
import StreamFuseCore

/// Questions and answers of the open chat.
extension ChatModel {
  /// Asks a question, unless it is empty or the model is busy; returns whether it was asked. A question that is being
  /// edited is replaced, and the turns after it are dropped.
  @discardableResult
  public func send(_ text: String) -> Bool {
    ask(text, from: state.editing ?? state.turns.count, settings.settings.config)
  }

  /// Asks the last question again; returns whether it was asked. An answer that was complete is sampled with a new
  /// seed.
  @discardableResult
  public func retry() -> Bool {
    guard canRetry else { return false }
    let index = state.turns.count - 2
    let chosen = settings.settings.config
    let config = state.turns[index + 1].isWhole ? chosen.another(defaults, seed: .random(in: 0...UInt64(Int64.max))) : chosen
    return ask(state.turns[index].text, from: index, config)
  }

  /// Whether the last answer can be replaced now.
  public var canRetry: Bool { canAsk && state.turns.count > 1 && state.editing == nil }

  /// Asks what is in the input field, as `send` does, and empties it. After an edit, restores what was in it before.
  public func sendInput() {
    let before = state.editing == nil ? nil : state.unsent
    if send(input) { type(before ?? "") }
  }

  /// The user has typed or deleted something. A text that was refused, or typed before an edit, is kept with its chat
  /// until it is deleted.
  public func type(_ text: String) {
    input = text
    guard state.unsent != nil, state.editing == nil else { return }
    if text.allSatisfy(\.isWhitespace) { state.unsent = nil }
    unsaved = true
  }

  /// Begins to edit the question at this index of the conversation: `send` replaces it. What is in the input field comes
  /// back after the edit.
  public func edit(_ index: Int) {
    guard canAsk, state.turns.indices.contains(index), state.turns[index].role == .user else { return }
    if state.editing == nil, !input.allSatisfy(\.isWhitespace) {
      state.unsent = input
      unsaved = true
    }
    state.editing = index
    input = state.turns[index].text
  }

  /// Ends the edit; the question stays as it is.
  public func endEdit() {
    state.editing = nil
    input = state.unsent ?? ""
  }

  private func ask(_ text: String, from index: Int, _ config: GenerationConfig) -> Bool {
    let asked = text.trimmingCharacters(in: .whitespacesAndNewlines)
    guard !asked.isEmpty, canAsk else { return false }
    let kept = Array(state.turns.prefix(index))
    stopping = nil
    replaced = kept.count < state.turns.count ? state.turns : nil
    state.phase = .writing
    state.turns = kept + [.question(asked)]
    state.begun = false
    state.editing = nil
    state.error = nil
    answer.turn = Turn(role: .assistant)
    answer.live = Live()
    changedAt = Date()
    later { await self.write(asked, config, after: kept) }
    return true
  }

  /// Writes the answer to a question that follows these turns.
  private func write(_ asked: String, _ config: GenerationConfig, after kept: [Turn]) async {
    guard session != nil else { return }
    let before = replaced
    if before != nil { rewind(to: kept) }
    if let stopping {
      finish(stopping)
    } else if let session {
      await write(session, asked, config)
    }
    // Restore the old turns if no answer replaced them. Only here does nothing reference the old session any more.
    if let before, state.turns == before { rewind(to: before) }
    await keepTurns()
  }

  private func write(_ session: any OpenSession, _ asked: String, _ config: GenerationConfig) async {
    unsaved = true
    let pieces = PieceBuffer(clock: clock) { [weak self] in self?.take($0, $1) }
    let ask = session.ask(asked, config)  // here, so that every later stop is one of this answer
    do {
      try await ask { pieces.add($0) }
      pieces.flush()
      let statistics = try await session.statistics
      let end = statistics?.finishReason ?? ""
      if let statistics { answer.live = Live(statistics) }
      finish(end == End.stopped ? stopping ?? end : end)
    } catch {
      pieces.flush()
      finish(End.failed)
      state.error = sentence(of: error)
    }
  }

  private func take(_ pieces: [Piece], _ live: Live) {
    answer.take(pieces, live)
    if !state.begun { state.begun = true }
  }

  /// Ends the turn.
  private func finish(_ end: String) {
    guard answer.turn != nil else { return }
    let (turns, refused) = ended(end)
    replaced = nil
    answer.turn = nil
    state.turns = turns
    state.phase = .ready
    if let refused {
      input = joined(refused, input)
      state.unsent = input
    }
  }

  /// The conversation if the answer ends now, and the text that goes back into the input field. A partial answer is
  /// kept. A question without any token of an answer goes back, as in the library, and what it was to replace comes back
  /// into the conversation. Tokens without text count.
  func ended(_ end: String) -> (turns: [Turn], refused: String?) {
    guard (answer.live?.tokens ?? 0) == 0, [End.failed, End.stopped, End.left].contains(end) else {
      var turn = answer.turn ?? Turn(role: .assistant)
      turn.end = end
      turn.figures = answer.live
      return (state.turns + [turn], nil)
    }
    let kept = Array(state.turns.dropLast()), asked = state.turns[kept.count].text
    guard let replaced else { return (kept, asked) }
    return (replaced, replaced[kept.count].text == asked ? nil : asked)
  }
}

/// A refused text followed by the text of the input field, unless that begins with it.
func joined(_ refused: String?, _ typed: String) -> String {
  guard let refused, !typed.hasPrefix(refused) else { return typed }
  return typed.allSatisfy(\.isWhitespace) ? refused : "\(refused)\n\(typed)"
}
