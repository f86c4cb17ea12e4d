import Foundation
import Synchronization

/// One sequence of tokens with its own cache, which answers one request at a time. `Chat` and `Completion` are made of
/// it; use it by itself for token ids.
///
/// Its calls run in sequence on its own dispatch queue, never on Swift's shared pool and never on the main thread. The
/// engine is made by the first call that needs it.
public actor Session {
  /// What `stop` must reach from any thread.
  private struct Running {
    /// The writer; nil until a call needs it.
    var writer: (any Writer)?
    /// The request that is being answered.
    var turn: Turn?
    /// The last request, also after its end; nil if another call ended it, or a request, `reset` or `restore` came
    /// after it.
    var last: Turn?
    /// How many requests were made, and calls that end them, such as `reset`. Only the newest of them may begin.
    var requests = 0
    /// How many of the last of them keep the rounds of tools.
    var keeping = 0
    /// The number of the score that is being computed, among the requests.
    var scoring: Int?
    /// How often `stop` was called. A request made before the last call has ended, or ends as soon as it begins.
    var stops = 0

    /// Counts a request, or a call that ends all requests, and stops the answer in progress. The tool calls of that
    /// answer, if some are complete, are not made; those of an answer that has ended are, if the call `keepsRounds`.
    mutating func claim(_ request: Turn? = nil, keepsRounds: Bool = false) {
      requests += 1
      keeping = keepsRounds ? keeping + 1 : 0
      request?.number.store(requests, ordering: .relaxed)
      if turn != nil || (scoring != nil && !keepsRounds) { writer?.stop() }
      if !keepsRounds || turn != nil { last = nil }
    }

    /// Counts the calls that end a score, which compares it before and after.
    var ending: Int { requests - keeping }

    /// Whether nothing was claimed since this request that ends it.
    func isNewest(_ request: Turn) -> Bool {
      var newest = requests
      if case .results = request.prompt { newest -= keeping }
      return request.number.load(ordering: .relaxed) == newest
    }
  }

  /// Makes the writer, with an empty cache.
  private let makeWriter: @Sendable () throws -> any Writer
  /// The defaults of all requests: those of the bundle, and what the session was made with.
  nonisolated let defaults: GenerationConfig
  /// The context length.
  private let capacity: Int
  /// What `stop` must reach from any thread.
  private let running = Locked(Running())
  /// Whether a request has begun.
  private var begun = false
  /// Where the calls run.
  private nonisolated let executor = SessionExecutor()

  /// The calls of a session run on a dispatch queue, because a pass blocks its thread.
  public nonisolated var unownedExecutor: UnownedSerialExecutor { executor.asUnownedSerialExecutor() }

  /// A session that has not begun.
  init(defaults: GenerationConfig, capacity: Int, makeWriter: @escaping @Sendable () throws -> any Writer) {
    self.makeWriter = makeWriter
    self.capacity = capacity
    self.defaults = defaults
  }

  /// Sends a request and streams the answer in pieces. Nothing runs until the first piece is requested.
  public nonisolated func stream(_ prompt: Prompt, _ configure: (inout GenerationConfig) -> Void = { _ in }) -> Answer {
    var config = GenerationConfig()
    configure(&config)
    return Answer(session: self, turn: Turn(prompt, config.over(defaults), stops: running.withLock { $0.stops }))
  }

  /// A request that continues an answer that has ended; nil if something was requested or stopped since.
  nonisolated func stream(
    _ prompt: Prompt, after ended: Turn, _ configure: (inout GenerationConfig) -> Void
  ) -> Answer? {
    var config = GenerationConfig()
    configure(&config)
    let turn = Turn(prompt, config.over(defaults), stops: ended.stops)
    let goesOn = running.withLock {
      guard $0.last === ended && $0.stops == ended.stops else { return false }
      $0.claim(turn)
      return true
    }
    return goesOn ? Answer(session: self, turn: turn) : nil
  }

  /// Ends all requested answers and scores, including those that have not begun. Delivered tokens are kept. Any thread
  /// may call it; later requests are not affected.
  public nonisolated func stop() {
    running.withLock {
      $0.stops += 1
      if $0.turn != nil || $0.scoring != nil { $0.writer?.stop() }
    }
  }

  /// How probable the model finds an answer: `Chat.score`, `Completion.score`.
  nonisolated func score(_ text: String, _ answer: String) async throws -> Score {
    let (number, stops, ending) = running.withLock {
      $0.claim(keepsRounds: true)
      return ($0.requests, $0.stops, $0.ending)
    }
    return try await withTaskCancellationHandler {
      try await scored(text, answer, number, stops, ending)
    } onCancel: {
      running.withLock { $0.scoring == number ? $0.writer?.stop() : () }
    }
  }

  /// The isolated part of `score`, which a `stop`, a later request and the like end.
  private func scored(_ text: String, _ answer: String, _ number: Int, _ stops: Int, _ ending: Int) throws -> Score {
    endTurn(keepsRounds: true)
    let writer = try opened()
    let goesOn = { self.running.withLock { $0.stops == stops && $0.ending == ending } }
    defer { running.withLock { $0.scoring = nil } }
    running.withLock { $0.scoring = number }
    let found = Result { goesOn() && !Task.isCancelled ? try writer.score(text, answer) : [] }
    try Task.checkCancellation()
    guard goesOn() else { throw StreamFuseError(.cancelled, "the score was ended before it was complete") }
    return Score(logProbs: try found.get())
  }

  /// Measures the latency of passes on this device, unless it is known (about 250 ms). Without this call, the first
  /// planned answer does it. An answer in progress ends.
  public nonisolated func prepare() async throws {
    try await alone(keepsRounds: true) { try $0.opened().prepare() }
  }

  /// Calls `prepare`, unless an answer is in progress.
  package func prepareIfIdle() throws {
    endLeftTurn()
    if running.withLock({ $0.turn }) == nil { try opened().prepare() }
  }

  /// The last context and all tokens delivered after it.
  public var tokens: [Int] {
    get throws {
      endLeftTurn()
      return try writer?.tokens() ?? []
    }
  }

  /// Tokens of the context that the last prompt and its answer occupy; 0 before the first.
  public var usedTokens: Int {
    get throws {
      endLeftTurn()
      return try writer?.usedTokens() ?? 0
    }
  }

  /// Tokens of the context that are left.
  public var remainingTokens: Int {
    get throws { try capacity - usedTokens }
  }

  /// The turns so far; an answer in progress is added when it ends.
  public var messages: [Message] {
    get throws {
      endLeftTurn()
      return try opened().messages()
    }
  }

  /// Statistics of the last answer, or so far of the one in progress; nil before the first.
  public var statistics: Statistics? {
    get throws {
      endLeftTurn()
      return begun ? try writer?.statistics() : nil
    }
  }

  /// Clears all tokens, and all turns except the messages that the session began with. An answer in progress ends.
  public nonisolated func reset() async throws {
    try await alone { try $0.writer?.reset() }
  }

  /// Drops the cache and gives its memory back to the system, while memory is short. An answer in progress ends. The
  /// conversation stays, and the next request prefills it again. `Model.trim` does this for all sessions that are not
  /// in use. Throws `StreamFuseError`.
  public nonisolated func trim() async throws {
    try await alone(keepsRounds: true) { try $0.writer?.trim() }
  }

  /// Whether a request is being answered that somebody reads.
  nonisolated var isAnswering: Bool { running.withLock { $0.turn.map { !$0.isLeft } ?? false } }

  /// Calls `trim`, unless an answer is in progress.
  func trimIfIdle() throws {
    endLeftTurn()
    if running.withLock({ $0.turn }) == nil { try writer?.trim() }
  }

  /// Writes cache, tokens and conversation to a file atomically. An answer in progress ends.
  public nonisolated func save(to file: URL) async throws {
    try await alone(keepsRounds: true) { try $0.opened().save(to: file) }
  }

  /// Restores what `save` wrote with the same bundle, in this process or another. A file that is damaged, was saved
  /// with another bundle, or has a conversation that the tokenizer cannot represent is rejected (`badFile`) and changes
  /// nothing. So is one with a turn that does not fit `Message`, for example with a role that only another language's
  /// library has, but then the session is reset. An answer in progress ends.
  public nonisolated func restore(from file: URL) async throws {
    try await alone { try $0.opened().restore(from: file) }
  }

  /// Ends the answer in progress, also during its prefill, and the requests that wait, and runs `body`. Unless it
  /// `keepsRounds`, results of tools that still run do not reach the model.
  private nonisolated func alone(
    keepsRounds: Bool = false, _ body: @Sendable (isolated Session) throws -> Void
  ) async throws {
    running.withLock { $0.claim(keepsRounds: keepsRounds) }
    try await afterTurn(keepsRounds: keepsRounds, body)
  }

  /// The isolated part of `alone`.
  private func afterTurn(keepsRounds: Bool, _ body: @Sendable (isolated Session) throws -> Void) throws {
    endTurn(keepsRounds: keepsRounds)
    try body(self)
  }

  /// Makes `turn` the newest request, once: the answer in progress ends, even in prefill, and the requests that wait do
  /// not begin. Does not wait for the session's queue.
  nonisolated func makeWay(for turn: Turn) {
    running.withLock { if turn.number.load(ordering: .relaxed) == 0 { $0.claim(turn) } }
  }

  /// The next piece of an answer.
  func next(_ turn: Turn) throws -> Piece? {
    if !turn.begun.exchange(true, ordering: .relaxed) { try begin(turn) }
    guard isRunning(turn), let writer else { return turn.nextHeldBack() }
    do {
      try Task.checkCancellation()
      if let piece = try writer.next() { return piece }
      close(turn)
      // A cancelled task ended it by `stop`, and must not take the answer for a complete one.
      try Task.checkCancellation()
      return nil
    } catch {
      endTurn()
      throw error
    }
  }

  /// Ends an answer at its next token, if it is the one in progress.
  nonisolated func stop(_ turn: Turn) {
    running.withLock { $0.turn === turn ? $0.writer?.stop() : () }
  }

  /// The outcome of an answer, or so far of one in progress.
  func outcome(of turn: Turn) throws -> Turn.Outcome {
    if let known = turn.outcome.withLock({ $0 }) { return known }
    return try Turn.Outcome(opened())
  }

  /// Whether nothing was requested or stopped since this request.
  nonisolated func isLast(_ turn: Turn) -> Bool { running.withLock { $0.last === turn && $0.stops == turn.stops } }

  /// The writer; nil if no call has needed it.
  private var writer: (any Writer)? { running.withLock { $0.writer } }

  /// The writer, made by the first call.
  private func opened() throws -> any Writer {
    if let writer { return writer }
    let made = try makeWriter()
    running.withLock { $0.writer = made }
    return made
  }

  /// Whether this answer is in progress.
  private func isRunning(_ turn: Turn) -> Bool { running.withLock { $0.turn === turn } }

  /// Begins an answer and ends the one in progress. A refused request has no other effect; one that is not the newest
  /// has none at all.
  private func begin(_ turn: Turn) throws {
    guard running.withLock({ $0.isNewest(turn) }) else { return try Task.checkCancellation() }
    endTurn()
    try Task.checkCancellation()
    let writer = try opened()  // takes a while, the first time
    let isNewest = running.withLock {
      guard $0.isNewest(turn) else { return false }
      ($0.turn, $0.last) = (turn, turn)
      return true
    }
    guard isNewest else { return try Task.checkCancellation() }
    do {
      try writer.start(turn.prompt, turn.config)
      begun = true
      turn.outcome.withLock { $0 = nil }
      // The start forgets a stop that came before it.
      running.withLock { $0.stops == turn.stops && $0.isNewest(turn) ? () : writer.stop() }
    } catch {
      running.withLock { ($0.turn, $0.last) = (nil, nil) }
      throw error
    }
  }

  /// Ends the answer in progress; delivered tokens are kept. Unless it `keepsRounds`, an answer that was complete before,
  /// and may have calls whose tools still run, is no longer the last one either: their results do not reach the model.
  private func endTurn(keepsRounds: Bool = false) {
    let turn = running.withLock {
      if !keepsRounds || $0.turn != nil { $0.last = nil }
      return $0.turn
    }
    guard let turn else { return }
    do {
      try writer?.finish()
      while let piece = try writer?.next() { turn.heldBack.withLock { $0.append(piece) } }
    } catch {
      // Out of memory. The answer ends here, and the next call on the session throws the error.
    }
    close(turn)
  }

  /// Ends an answer whose iterators are all gone.
  private func endLeftTurn() {
    if let turn = running.withLock({ $0.turn }), turn.isLeft { endTurn() }
  }

  /// Stores the outcome of an answer that has ended.
  private func close(_ turn: Turn) {
    running.withLock { $0.turn = nil }
    let outcome = writer.flatMap { try? Turn.Outcome($0) }
    turn.outcome.withLock { $0 = outcome }
  }
}
