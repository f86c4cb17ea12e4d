import Synchronization

/// What an answer continues.
public enum Prompt: Sendable, Equatable {
  /// The whole context as token ids.
  case tokens([Int])
  /// Plain text, without a chat template.
  case text(String)
  /// The user's next turn in a conversation.
  case turn(String)
  /// One result for each tool call of the last answer.
  case results([ToolResult])
}

/// An answer that is streamed in pieces.
///
///     for try await piece in chat.stream(to: "Why is the sky blue?") { print(piece.text, terminator: "") }
///
/// The model runs when a piece is requested, so leaving takes effect at exactly that piece: if you leave an answer, by
/// `break` or by cancelling the task, the delivered pieces are kept, and the session continues from there. Cancelling
/// while a piece is computed ends the answer at its next token and throws `CancellationError`; `stop()` of the session,
/// and another request to it, end it as if it were complete, and text that was held back still arrives. An answer that
/// still waits when another is requested has no pieces and leaves no trace in the conversation. An answer is written
/// once: a second loop over it finds nothing more.
public struct Answer: AsyncSequence, Sendable {
  /// A step of the answer.
  public typealias Element = Piece

  /// The session that writes it.
  let session: Session
  /// The request and its progress.
  let turn: Turn

  /// Iterates over the answer. Releasing the iterator leaves the answer.
  public final class AsyncIterator: AsyncIteratorProtocol, Sendable {
    /// The session that writes it.
    private let session: Session
    /// The answer that this iterator steps through.
    private let turn: Turn

    /// Steps through `turn`.
    init(session: Session, turn: Turn) {
      self.session = session
      self.turn = turn
      turn.enter()
    }

    deinit { turn.leave() }

    /// The next piece; nil at the end.
    public func next() async throws -> Piece? {
      session.makeWay(for: turn)
      return try await withTaskCancellationHandler {
        try await session.next(turn)
      } onCancel: {
        session.stop(turn)
      }
    }
  }

  /// Begins, or continues where an earlier loop left an unfinished answer.
  public func makeAsyncIterator() -> AsyncIterator { AsyncIterator(session: session, turn: turn) }

  /// Waits for the whole answer.
  public func response() async throws -> Response {
    let iterator = makeAsyncIterator()
    var text = "", thinking = "", tokens = [Int](), logProbs = [Double]()
    var topLogProbs = [[TokenLogProb]]()
    while let piece = try await iterator.next() {
      switch piece.channel {
      case .answer: text += piece.text
      case .thinking: thinking += piece.text
      case .toolCall: break
      }
      if let token = piece.token { tokens.append(token) }
      if let logProb = piece.logProb { logProbs.append(logProb) }
      if !piece.topLogProbs.isEmpty { topLogProbs.append(piece.topLogProbs) }
    }
    let outcome = try await session.outcome(of: turn)
    return Response(
      text: text, thinking: thinking, toolCalls: outcome.toolCalls, tokens: tokens, logProbs: logProbs,
      topLogProbs: topLogProbs, statistics: outcome.statistics)
  }
}

/// One request to a session.
final class Turn: Sendable {
  /// What is known of an answer besides its pieces.
  struct Outcome {
    /// Counters and times.
    let statistics: Statistics
    /// The calls that the model wrote.
    let toolCalls: [ToolCall]

    /// That of a request that has not begun.
    static let notBegun = Outcome(statistics: .stopped, toolCalls: [])
  }

  /// The prompt.
  let prompt: Prompt
  /// Its options.
  let config: GenerationConfig
  /// Its outcome, before it begins and once it has ended, also if another request ended it; nil in between.
  let outcome = Locked<Outcome?>(.notBegun)
  /// The pieces that its writer released when another call ended it, and that no iterator has read.
  let heldBack = Locked<[Piece]>([])
  /// The session's stop count at the time of the request: a later `stop` ends it, whether it has begun or not.
  let stops: Int
  /// Its number among the session's requests; 0 until its first piece is requested. The session's lock protects it.
  let number = Atomic(0)
  /// Whether the session has begun with it, or dropped it. Only the session asks.
  let begun = Atomic(false)
  /// The iterators over it.
  private let iterators = Atomic(0)

  /// A request that has not begun.
  init(_ prompt: Prompt, _ config: GenerationConfig, stops: Int) {
    self.prompt = prompt
    self.config = config
    self.stops = stops
  }

  /// The next of the pieces that were held back; nil if none is left.
  func nextHeldBack() -> Piece? { heldBack.withLock { $0.isEmpty ? nil : $0.removeFirst() } }

  /// Counts an iterator.
  func enter() { iterators.wrappingAdd(1, ordering: .acquiringAndReleasing) }

  /// Counts an iterator that is gone. After the last one, the session ends the answer before it does anything else.
  func leave() { iterators.wrappingSubtract(1, ordering: .acquiringAndReleasing) }

  /// Whether all iterators of an answer that has begun are gone.
  var isLeft: Bool { iterators.load(ordering: .acquiring) == 0 }
}

extension Turn.Outcome {
  /// The outcome of the last answer of `writer`.
  init(_ writer: any Writer) throws {
    self.init(statistics: try writer.statistics(), toolCalls: try writer.toolCalls())
  }
}
