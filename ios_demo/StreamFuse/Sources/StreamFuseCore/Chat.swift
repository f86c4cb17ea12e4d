import Foundation

/// What chats and completions share. Any task may use them; requests wait for each other.
public protocol TextSession: Sendable {
  /// The sequence of tokens behind it.
  var session: Session { get }
}

extension TextSession {
  /// What the last answer took, or the one that is being written so far; nil before the first.
  public var statistics: Statistics? {
    get async throws { try await session.statistics }
  }

  /// Ends the answers that were asked for at their next token, those too that have not begun; what was delivered counts.
  /// Any thread may call it.
  public func stop() { session.stop() }

  /// Forgets all tokens, and all turns but the messages that it began with.
  public func reset() async throws { try await session.reset() }

  /// Writes cache, tokens and conversation to a file, in one piece or not at all. An answer that is being written ends.
  public func save(to file: URL) async throws { try await session.save(to: file) }

  /// Takes back what `save` wrote with the same bundle, in this process or another. A damaged or foreign file is refused
  /// with the code `badFile`, and changes nothing.
  public func restore(from file: URL) async throws { try await session.restore(from: file) }

  /// Measures what passes cost on this device, unless that is known, so that the first answer need not.
  public func prepare() async throws { try await session.prepare() }
}

/// A conversation: `Model.chat`.
public final class Chat: TextSession {
  /// The sequence of tokens behind it.
  public let session: Session

  /// A conversation on a sequence of its own.
  init(_ session: Session) { self.session = session }

  /// Asks; the answer comes in pieces while it is written. A request that does not fit into the context is refused, and
  /// the conversation is as before.
  public func stream(to words: String, _ configure: (inout GenerationConfig) -> Void = { _ in }) -> Answer {
    session.stream(.turn(words), configure)
  }

  /// Asks, and waits for the whole answer.
  @discardableResult
  public func respond(
    to words: String, _ configure: @Sendable (inout GenerationConfig) -> Void = { _ in }
  ) async throws -> Response {
    try await stream(to: words, configure).response()
  }

  /// The turns so far; an answer that is being written comes when it ends.
  public var messages: [Message] {
    get async throws { try await session.messages }
  }
}

/// Plain text that is continued, without a chat template: `Model.completion`. Each prompt stands alone; what it shares
/// with the text before it, from the beginning on, is not read again.
public final class Completion: TextSession {
  /// The sequence of tokens behind it.
  public let session: Session

  /// Plain text on a sequence of its own.
  init(_ session: Session) { self.session = session }

  /// Continues `prompt`; the text comes in pieces while it is written.
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
