import Foundation
import StreamFuseCore

/// What the app needs of the library; tests replace it.
public protocol Library: Sendable {
  /// The backends of the library, each with nil if it can run on this device, or else the reason why not.
  var backends: [String: String?] { get }

  /// Opens a bundle. `checkHashes` compares the hashes of all its files, for a new bundle. `memory` is the file that
  /// keeps answers, so that later ones are drafted from them; nil keeps none. Throws `StreamFuseError`.
  func open(_ folder: URL, threads: Int?, memory: URL?, checkHashes: Bool) async throws -> any OpenModel

  /// Removes what the library keeps elsewhere for a bundle that is about to be deleted.
  func removeCaches(of folder: URL, unlessUsedBy others: [URL]) async
}

/// A bundle that is open; its memory goes with the last reference.
public protocol OpenModel: Sendable {
  /// Without a chat template the model only continues text, and has no system prompt.
  var canChat: Bool { get }
  /// Threads of the engine; nil if it chose them itself.
  var threads: Int? { get }

  /// The bundle's settings.
  var defaults: GenerationConfig { get }

  /// A conversation that begins with these messages.
  func session(instructions: String?, history: [Message], contextPolicy: ContextPolicy) -> any OpenSession

  /// Erases the answers that it keeps.
  func forget() async throws

  /// Repeats the passes that the exporter recorded in the bundle, and compares their outputs.
  func selfTest() async throws -> SelfTest
}

/// A conversation.
public protocol OpenSession: Sendable {
  /// Statistics of the last answer; nil before the first one.
  var statistics: Statistics? { get async throws }

  /// Asks. Nothing runs before the result is called, which writes the answer and passes it to `take` in pieces, on any
  /// thread.
  func ask(_ words: String, _ config: GenerationConfig) -> @Sendable (_ take: @Sendable (Piece) -> Void) async throws -> Void

  /// Ends the answers that were asked for at their next token.
  func stop()

  /// Writes cache and conversation to a file.
  func save(to file: URL) async throws

  /// Takes back what `save` wrote.
  func restore(from file: URL) async throws
}

/// A model of the library.
public struct LoadedModel: OpenModel {
  private let model: Model
  public let threads: Int?

  /// A model that was loaded with so many threads.
  public init(_ model: Model, threads: Int?) {
    self.model = model
    self.threads = threads
  }

  public var canChat: Bool { model.canChat }

  public var defaults: GenerationConfig { model.defaults }

  public func forget() async throws { try model.forget() }

  public func selfTest() async throws -> SelfTest { try await model.selfTest() }

  public func session(instructions: String?, history: [Message], contextPolicy: ContextPolicy) -> any OpenSession {
    if model.canChat {
      let chat = model.chat(instructions: instructions, history: history, contextPolicy: contextPolicy)
      return LoadedSession(text: chat) { words, config in chat.stream(to: words) { $0 = config } }
    }
    let completion = model.completion()
    return LoadedSession(text: completion) { words, config in completion.stream(after: words) { $0 = config } }
  }
}

/// A chat or a completion of the library.
private struct LoadedSession: OpenSession {
  let text: any TextSession
  let stream: @Sendable (String, GenerationConfig) -> Answer

  var statistics: Statistics? {
    get async throws { try await text.statistics }
  }

  func ask(_ words: String, _ config: GenerationConfig) -> @Sendable (_ take: @Sendable (Piece) -> Void) async throws -> Void {
    let answer = stream(words, config)
    return { take in for try await piece in answer { take(piece) } }
  }

  func stop() { text.stop() }

  func save(to file: URL) async throws { try await text.save(to: file) }

  func restore(from file: URL) async throws { try await text.restore(from: file) }
}
