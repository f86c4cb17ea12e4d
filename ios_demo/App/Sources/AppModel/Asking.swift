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
  public var canRetry: Bool { state.phase == .ready && state.turns.count > 1 && state.editing == nil }

  /// Begins to edit the question at this index of the conversation: `send` replaces it.
  public func edit(_ index: Int) {
    guard state.phase == .ready, state.turns.indices.contains(index), state.turns[index].role == .user else { return }
    state.editing = index
    state.unsent = state.turns[index].text
  }

  /// Ends the edit; the question stays as it is.
  public func endEdit() { state.editing = nil }

  /// The input field has taken the refused text.
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
    changedAt = Date()
    later { await self.write(asked, config, kept.count < before.count ? (before, kept) : nil) }
    return true
  }

  /// Writes the answer. `rewound`: the turns before an edit or a retry, and those of them that are kept.
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
      if rewound.before[rewound.kept.count].text == asked { state.unsent = nil }  // it is in the conversation
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

  /// Ends the turn. A partial answer is kept; a question without any token of an answer goes back into the input field,
  /// as in the library. Tokens without text count.
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
