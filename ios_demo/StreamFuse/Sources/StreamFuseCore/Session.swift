import CStreamFuse
import Foundation
import Synchronization

/// One sequence of tokens with a cache of its own, which answers one request at a time. `Chat` and `Completion` are made
/// of it; use it by itself for token ids.
///
/// Its calls run one after the other on a thread of its own, never on Swift's shared pool and never on the main thread.
/// The engine is made by the first call that needs it.
public actor Session {
  /// What one needs to make the core's session.
  struct Maker: Sendable {
    /// Makes the core's session with an empty cache.
    let core: @Sendable () throws -> CoreSession
    /// Makes the text around its tokens.
    let text: @Sendable () throws -> any SessionText
  }

  /// What `stop` must reach from any thread.
  private struct Running {
    /// The core's session, once there is one.
    var core: CoreSession?
    /// The request that is being answered.
    var turn: Turn?
    /// How often `stop` was called. A request that was asked before the last call has ended, or ends as soon as it begins.
    var stops = 0
  }

  /// How core and text are made.
  private let maker: Maker
  /// The defaults of all requests: those of the bundle, and what the session was made with.
  nonisolated let defaults: GenerationConfig
  /// What `stop` must reach from any thread.
  private let running = Mutex(Running())
  /// The text around the tokens, once there is one.
  private var text: (any SessionText)?
  /// Where the calls run.
  private nonisolated let executor = SessionExecutor()

  /// The calls of a session run on a dispatch queue, because a pass blocks its thread.
  public nonisolated var unownedExecutor: UnownedSerialExecutor { executor.asUnownedSerialExecutor() }

  /// A session that has not begun.
  init(_ maker: Maker, defaults: GenerationConfig) {
    self.maker = maker
    self.defaults = defaults
  }

  /// Asks; the answer comes in pieces while it is written. Nothing runs before the first piece is asked for.
  public nonisolated func stream(_ prompt: Prompt, _ configure: (inout GenerationConfig) -> Void = { _ in }) -> Answer {
    var config = GenerationConfig()
    configure(&config)
    return Answer(session: self, turn: Turn(prompt, config.over(defaults), stops: running.withLock { $0.stops }))
  }

  /// Ends the answers that were asked for at their next token, those too that have not begun; what was delivered counts.
  /// Any thread may call it; a later request is answered as ever.
  public nonisolated func stop() {
    running.withLock {
      $0.stops += 1
      if $0.turn != nil { $0.core?.stop() }
    }
  }

  /// Measures what passes cost on this device, unless that is known; otherwise the first planned answer does it. About
  /// 250 ms.
  public func prepare() throws {
    endTurn()
    try opened().prepare()
  }

  /// The last context and all tokens delivered after it.
  public var tokens: [Int] {
    get throws {
      endLeftTurn()
      return try core?.tokens() ?? []
    }
  }

  /// The turns so far; an answer that is being written comes when it ends.
  public var messages: [Message] {
    get throws {
      endLeftTurn()
      return try openedText().messages()
    }
  }

  /// What the last answer took, or the one that is being written so far; nil before the first.
  public var statistics: Statistics? {
    get throws {
      endLeftTurn()
      return try core?.statistics()
    }
  }

  /// Forgets all tokens, and all turns but the messages that the session began with.
  public func reset() throws {
    endTurn()
    try core?.reset()
    try text?.reset()
  }

  /// Writes cache, tokens and conversation to a file, in one piece or not at all. An answer that is being written ends.
  public func save(to file: URL) throws {
    endTurn()
    let core = try opened()
    try core.save(to: file, note: openedText().save())
  }

  /// Takes back what `save` wrote with the same bundle, in this process or another. A damaged or foreign file is refused
  /// (`badFile`) and changes nothing, and so is one whose conversation the tokenizer does not know.
  public func restore(from file: URL) throws {
    endTurn()
    let core = try opened(), text = try openedText()
    try core.restore(from: file, take: text.restore)
  }

  /// The next piece of an answer.
  func next(_ turn: Turn) throws -> Piece? {
    if !turn.begun.exchange(true, ordering: .relaxed) { try begin(turn) }
    guard isRunning(turn), let core, let text else { return nil }
    do {
      try Task.checkCancellation()
      guard let token = try core.next() else {
        let tail = try close(turn)
        // A cancelled task ended it by `stop`, and must not take the answer for a complete one.
        try Task.checkCancellation()
        return tail.isEmpty ? nil : Piece(text: tail, token: nil)
      }
      turn.delivered.store(true, ordering: .relaxed)
      let (shown, stopped) = try text.push(token.id)
      if stopped { try core.finish("stop") }
      return Piece(text: shown, token: Int(token.id), source: Source(number: token.source))
    } catch {
      endTurn()
      throw error
    }
  }

  /// Ends an answer at its next token, if it is the one that is being written.
  nonisolated func stop(_ turn: Turn) {
    running.withLock { $0.turn === turn ? $0.core?.stop() : () }
  }

  /// What an answer took.
  func statistics(of turn: Turn) throws -> Statistics {
    if let known = turn.statistics.withLock({ $0 }) { return known }
    return try opened().statistics()
  }

  /// The core's session, where there is one.
  private var core: CoreSession? { running.withLock { $0.core } }

  /// The core's session; made where there is none.
  private func opened() throws -> CoreSession {
    if let core { return core }
    let made = try maker.core()
    running.withLock { $0.core = made }
    return made
  }

  /// The text around the tokens; made where there is none.
  private func openedText() throws -> any SessionText {
    if let text { return text }
    let made = try maker.text()
    text = made
    return made
  }

  /// Whether this answer is being written.
  private func isRunning(_ turn: Turn) -> Bool { running.withLock { $0.turn === turn } }

  /// Starts to answer. An answer that is being written ends. What is refused changes nothing else.
  private func begin(_ turn: Turn) throws {
    endTurn()
    try Task.checkCancellation()
    let core = try opened(), text = try openedText()
    let ids: [Int64] =
      switch turn.prompt {
      case .tokens(let ids): ids.map(Int64.init)
      case .text(let words): try text.encode(words)
      case .turn(let words): try text.ask(words)
      }
    do {
      running.withLock { $0.turn = turn }
      try core.start(ids, turn.config)
      try text.begin(stops: turn.config.stop ?? [])
      running.withLock { $0.stops == turn.stops ? () : core.stop() }  // one that came before `start` was forgotten by it
    } catch {
      if case .turn = turn.prompt { text.takeBack() }
      try? core.finish()
      running.withLock { $0.turn = nil }
      throw error
    }
  }

  /// Ends the answer that is being written; what was delivered counts.
  private func endTurn() {
    guard let turn = running.withLock({ $0.turn }), let core else { return }
    // Neither fails unless memory is out, and then the next call says so.
    try? core.finish()
    _ = try? close(turn)
  }

  /// Ends an answer that nobody steps through any more.
  private func endLeftTurn() {
    if let turn = running.withLock({ $0.turn }), turn.isLeft { endTurn() }
  }

  /// Keeps what an answer took; it is not being written any more. Text that was held back. A question is forgotten where
  /// the answer was ended before its first token.
  private func close(_ turn: Turn) throws -> String {
    running.withLock { $0.turn = nil }
    let took = try? core?.statistics()
    turn.statistics.withLock { $0 = took }
    if case .turn = turn.prompt, !turn.delivered.load(ordering: .relaxed), took?.finishReason == "stopped" {
      text?.takeBack()
      return ""
    }
    return try text?.end() ?? ""
  }
}
