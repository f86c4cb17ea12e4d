import Foundation

/// What chats and completions share. Any task may use them; a request ends those before it.
public protocol TextSession: Sendable {
  /// The sequence of tokens behind it.
  var session: Session { get }
}

extension TextSession {
  /// Statistics of the last answer, or so far of the one in progress; nil before the first.
  public var statistics: Statistics? {
    get async throws { try await session.statistics }
  }

  /// Tokens of the context that the last prompt and its answer occupy; 0 before the first.
  public var usedTokens: Int {
    get async throws { try await session.usedTokens }
  }

  /// Tokens of the context that are left: `Model.contextLength` without `usedTokens`.
  public var remainingTokens: Int {
    get async throws { try await session.remainingTokens }
  }

  /// How probable the model finds a given answer, for example to choose the most probable of several; in a completion,
  /// how probable it finds that the answer continues the text (begin it with the space that separates them). The answer
  /// is not generated, and the conversation is unchanged. Answers to the same text share their prefill. An answer in
  /// progress ends.
  ///
  /// - Throws: `StreamFuseError` if the answer is empty, both texts do not fit into the context, or a pass fails;
  ///   with the code `cancelled` if `stop`, `reset`, `restore` or a request ends it. `CancellationError` if the task is
  ///   cancelled.
  public func score(_ answer: String, to words: String) async throws -> Score { try await session.score(words, answer) }

  /// Ends all requested answers and scores, including those that have not begun. Delivered tokens are kept. Any thread
  /// may call it.
  public func stop() { session.stop() }

  /// Clears all tokens, and all turns except the messages that it began with.
  public func reset() async throws { try await session.reset() }

  /// Drops the cache and gives its memory back to the system, while memory is short. An answer in progress ends. The
  /// conversation stays, and the next request prefills it again. `Model.trim` does this for all that are not in use.
  /// Throws `StreamFuseError`.
  public func trim() async throws { try await session.trim() }

  /// Writes cache, tokens and conversation to a file atomically. An answer in progress ends.
  public func save(to file: URL) async throws { try await session.save(to: file) }

  /// Restores what `save` wrote with the same bundle, in this process or another. A damaged or foreign file is refused
  /// with the code `badFile`, and changes nothing.
  public func restore(from file: URL) async throws { try await session.restore(from: file) }

  /// Measures the latency of passes on this device, unless it is known, so that the first answer need not.
  public func prepare() async throws { try await session.prepare() }
}

/// A conversation: `Model.chat`.
public final class Chat: TextSession {
  /// The sequence of tokens behind it.
  public let session: Session
  /// The functions that the model may call.
  public let tools: [Tool]

  /// A conversation on a sequence of its own.
  init(_ session: Session, tools: [Tool]) {
    self.session = session
    self.tools = tools
  }

  /// Sends a request and streams the answer in pieces. A request that does not fit into the context is refused and
  /// leaves the conversation unchanged, unless `ContextPolicy.dropOldest` makes room for it.
  public func stream(to words: String, _ configure: (inout GenerationConfig) -> Void = { _ in }) -> Answer {
    session.stream(.turn(words), configure)
  }

  /// Sends the results of the last answer's tool calls, one for each call, and streams the answer to them. The answer
  /// throws `StreamFuseError` with the code `badArgument` if the last answer has no such call.
  public func stream(results: [ToolResult], _ configure: (inout GenerationConfig) -> Void = { _ in }) -> Answer {
    session.stream(.results(results), configure)
  }

  /// Sends a request and waits for the whole answer. If it calls tools, they are run, one after the other, and their
  /// results are sent, until an answer has no calls; the response is that answer.
  ///
  /// `stop`, another request, `reset` and `restore` end this too: no further call is made, and the response has all calls
  /// of its answer, made or not.
  ///
  /// - Parameter maxToolRounds: how many times per request tool results are sent back to the model, 4 by default; calls
  ///   beyond that are left in the response. 0: you make the calls and send the results with `stream(results:)`.
  /// - Throws: `StreamFuseError` if a request is refused or the engine fails; `CancellationError`.
  @discardableResult
  public func respond(
    to words: String, maxToolRounds: Int = 4, _ configure: @Sendable (inout GenerationConfig) -> Void = { _ in }
  ) async throws -> Response {
    var answer = stream(to: words, configure)
    var response = try await answer.response()
    // A required call was made; required again, it would repeat until the last round.
    let choice = answer.turn.config.toolChoice
    let wasRequired = choice != nil && choice != .auto && choice != .never
    for _ in 0..<max(0, maxToolRounds) where !response.toolCalls.isEmpty && session.isLast(answer.turn) {
      var results = [ToolResult]()
      for call in response.toolCalls {
        try Task.checkCancellation()
        guard session.isLast(answer.turn) else { return response }
        results.append(try await result(of: call))
      }
      let next = session.stream(.results(results), after: answer.turn) {
        configure(&$0)
        if wasRequired { $0.toolChoice = .auto }
      }
      guard let next else { break }
      answer = next
      response = try await answer.response()
    }
    return response
  }

  /// The result of a call, for the model to read.
  private func result(of call: ToolCall) async throws -> ToolResult {
    if let tool = tools.first(where: { $0.name == call.name }) { return try await tool.result(of: call) }
    let names = tools.map(\.name).joined(separator: ", ")
    return ToolResult(toolCallID: call.id, content: "error: there is no tool \(call.name); the tools are \(names)")
  }

  /// Sends a request and waits for an answer that is JSON of a type of your own. Its schema is `JSONSchema(for:)`, or
  /// the one that `configure` sets. With the tool choice `auto`, the model may call tools before it answers. Throws as
  /// `JSONSchema(for:)`, `respond` and `Response.parsed` do.
  public func respond<Value: Decodable>(
    to words: String, as type: Value.Type, _ configure: @Sendable (inout GenerationConfig) -> Void = { _ in }
  ) async throws -> Value {
    var config = GenerationConfig()
    configure(&config)
    let schema = try config.schema ?? JSONSchema(for: type)
    let response = try await respond(to: words) {
      configure(&$0)
      $0.schema = schema
    }
    return try response.parsed(as: type)
  }

  /// The turns so far; an answer in progress is added when it ends.
  public var messages: [Message] {
    get async throws { try await session.messages }
  }
}

/// A continuation of plain text, without a chat template: `Model.completion`. Prompts are independent; a prefix that a
/// prompt shares with the text before it is not prefilled again.
public final class Completion: TextSession {
  /// The sequence of tokens behind it.
  public let session: Session

  /// Plain text on a sequence of its own.
  init(_ session: Session) { self.session = session }

  /// Continues `prompt` and streams the text in pieces.
  public func stream(after prompt: String, _ configure: (inout GenerationConfig) -> Void = { _ in }) -> Answer {
    session.stream(.text(prompt), configure)
  }

  /// Continues `prompt`, and waits for the whole text.
  @discardableResult
  public func respond(
    to prompt: String, _ configure: @Sendable (inout GenerationConfig) -> Void = { _ in }
  ) async throws -> Response {
    try await stream(after: prompt, configure).response()
  }
}
