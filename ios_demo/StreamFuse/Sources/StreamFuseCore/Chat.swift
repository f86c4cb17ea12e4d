import Foundation

/// What chats and completions share. Any task may use them; requests wait for each other.
public protocol TextSession: Sendable {
  /// The sequence of tokens behind it.
  var session: Session { get }
}

extension TextSession {
  /// Statistics of the last answer, or so far of the one in progress; nil before the first.
  public var statistics: Statistics? {
    get async throws { try await session.statistics }
  }

  /// Ends all requested answers at their next token, including those that have not begun; delivered tokens are kept.
  /// Any thread may call it.
  public func stop() { session.stop() }

  /// Clears all tokens, and all turns except the messages that it began with.
  public func reset() async throws { try await session.reset() }

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
  /// leaves the conversation unchanged.
  public func stream(to words: String, _ configure: (inout GenerationConfig) -> Void = { _ in }) -> Answer {
    session.stream(.turn(words), configure)
  }

  /// Streams the answer to the results of the tools that the last answer called, if you run them yourself.
  public func stream(results: [ToolResult], _ configure: (inout GenerationConfig) -> Void = { _ in }) -> Answer {
    session.stream(.results(results), configure)
  }

  /// Sends a request and waits for the whole answer. While the model calls tools of this chat, they are run, and their
  /// results sent back, at most `maxToolRounds` times; then, or with 0, the calls are left in the response.
  @discardableResult
  public func respond(
    to words: String, maxToolRounds: Int = 4, _ configure: @Sendable (inout GenerationConfig) -> Void = { _ in }
  ) async throws -> Response {
    var response = try await stream(to: words, configure).response()
    for _ in 0..<max(0, maxToolRounds) where !response.toolCalls.isEmpty {
      var results = [ToolResult]()
      for call in response.toolCalls {
        guard let tool = tools.first(where: { $0.name == call.name }) else { return response }
        results.append(try await tool.result(of: call))
      }
      // A choice was for the first answer: the results are answered in words, or by another call.
      response = try await stream(results: results) {
        configure(&$0)
        $0.toolChoice = nil
      }.response()
    }
    return response
  }

  /// Sends a request and waits for an answer that is JSON of a type of your own. Its schema is `JSONSchema(for:)`, or
  /// the one that `configure` sets.
  public func respond<Value: Decodable>(
    to words: String, as type: Value.Type, _ configure: @Sendable (inout GenerationConfig) -> Void = { _ in }
  ) async throws -> Value {
    var config = GenerationConfig()
    configure(&config)
    let schema = try config.schema ?? JSONSchema(for: type)
    return try await stream(to: words) {
      configure(&$0)
      $0.schema = schema
    }.response().parsed(as: type)
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
