import CStreamFuse
import Foundation

/// A refusal or failure: a code to act on, and one sentence to show.
public struct StreamFuseError: Error, LocalizedError, Sendable, Equatable {
  /// The error codes of `core/streamfuse_core.h`, and four of this library, which are negative.
  public enum Code: Int32, Sendable, CaseIterable {
    /// Invalid arguments from the caller: ranges, lengths, an unknown name, a chat that the template refuses.
    case badArgument = 1
    /// The graphs: missing, damaged, or not of the expected shape.
    case badProgram = 2
    /// A graph needs an operator or backend that the engine does not contain.
    case missingOperator = 3
    /// A chat's question does not fit into the context: `ContextPolicy`.
    case contextFull = 4
    /// A row to commit was pruned.
    case notKept = 5
    /// The engine failed while running.
    case execution = 6
    /// Out of memory.
    case outOfMemory = 7
    /// An internal check failed.
    case broken = 8
    /// The drafting tables are inconsistent, or do not match the model.
    case badTables = 9
    /// A bundle or a saved session: missing, damaged, or foreign.
    case badFile = 10
    /// A JSON schema, regular expression or grammar is invalid, not supported or too large.
    case badGrammar = 11
    /// `stop` or another request ended a `score`. A cancelled task throws `CancellationError` instead, also in `load`.
    case cancelled = 12
    /// The text of an answer is not an object of the requested type: `Response.parsed`.
    case notParsed = -1
    /// A server or the connection to it failed; `isTemporary` says whether to try again. A download then goes on from
    /// where it ended.
    case network = -2
    /// The disk has too little free space for a bundle.
    case noSpace = -3
    /// The same contents are being downloaded already.
    case busy = -4
  }

  /// The error code.
  public let code: Code
  /// One sentence that names the object, the limit and the next step.
  public let message: String
  /// Whether the same call may succeed later; only with the code `network`. False for statuses other than
  /// 5xx, 408 and 429, and for a redirect to an address that is not HTTPS; true for all other failures, such as a lost
  /// connection or an incomplete answer.
  public let isTemporary: Bool

  /// An error of your own engine or tokenizer.
  public init(_ code: Code, _ message: String, isTemporary: Bool = false) {
    self.code = code
    self.message = message
    self.isTemporary = isTemporary
  }

  /// The same as `message`, for alerts and logs.
  public var errorDescription: String? { message }
}

/// Throws the core's error message unless `code` is `SF_OK`.
package func check(_ code: Int32, _ sentence: @autoclosure () -> UnsafePointer<CChar>?) throws {
  guard code != Int32(SF_OK) else { return }
  let message = sentence().map { String(cString: $0) } ?? "the core gave no reason"
  throw StreamFuseError(StreamFuseError.Code(rawValue: code) ?? .broken, message)
}
