import Foundation
import StreamFuseCore

/// Questions and answers of the open chat.
extension ChatModel {
  /// Asks, unless the model is busy; whether it does. Where a question is edited, the text takes its place, and what
  /// followed it is dropped.
  @discardableResult
  public func send(_ text: String) -> Bool {
    ask(text, from: state.editing ?? state.turns.count, settings.settings.config)
  }

  /// Asks the last question again. An answer that came to its end is replaced by another one.
  @discardableResult
  public func retry() -> Bool {
    guard canRetry else { return false }
    let index = state.turns.count - 2
    let chosen = settings.settings.config
    let config = state.turns[index + 1].isWhole ? chosen.another(defaults, seed: .random(in: 0...UInt64(Int64.max))) : chosen
    return ask(state.turns[index].text, from: index, config)
  }

  /// Whether there is an answer that another one may replace.
  public var canRetry: Bool { state.phase == .ready && state.turns.count > 1 && state.editing == nil }

  /// The next text takes the place of the question at this place in the conversation.
  public func edit(_ index: Int) {
    guard state.phase == .ready, state.turns.indices.contains(index), state.turns[index].role == .user else { return }
    state.editing = index
    state.unsent = state.turns[index].text
  }

  /// The question stays as it is.
  public func endEdit() { state.editing = nil }

  /// The refused text is in the input field again.
  public func takeUnsent() { state.unsent = nil }

  private func ask(_ text: String, from index: Int, _ config: GenerationConfig) -> Bool {
    let asked = text.trimmingCharacters(in: .whitespacesAndNewlines)
    guard !asked.isEmpty, state.phase == .ready else { return false }
    let before = state.turns, kept = Array(before.prefix(index))
    stopping = nil
    state.phase = .writing
    state.turns = kept + [.question(asked)]
    state.begun = false
    state.editing = nil
    state.error = nil
    answer.turn = Turn(role: .assistant)
    answer.live = Live()
    touch()
    later { await self.write(asked, config, kept.count < before.count ? (before, kept) : nil) }
    return true
  }

  /// Writes the answer. `rewound`: the turns that there were, and those of them that stay.
  private func write(_ asked: String, _ config: GenerationConfig, _ rewound: (before: [Turn], kept: [Turn])?) async {
    guard session != nil else { return }
    if let rewound { rewind(to: rewound.kept) }
    if let stopping {
      finish(stopping)
    } else if let session {
      await write(session, asked, config)
    }
    if let rewound, state.turns == rewound.kept {  // nothing took the place of what was there
      rewind(to: rewound.before)
      state.turns = rewound.before
    }
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

  /// The answer counts as far as it was delivered; a question without any answer was never asked. The library sees it so
  /// too: a token may have no text of its own, and counts.
  private func finish(_ end: String) {
    guard var turn = answer.turn else { return }
    answer.turn = nil
    if (answer.live?.tokens ?? 0) == 0 && [End.failed, End.stopped, End.left].contains(end) {
      state.unsent = state.turns.removeLast().text
    } else {
      turn.end = end
      turn.figures = answer.live
      state.turns.append(turn)
    }
    state.phase = .ready
  }
}
