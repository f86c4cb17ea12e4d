import Foundation

/// Generates the answers of one session: a sequence of tokens, its cache and its text. The session calls it from one
/// thread at a time; any thread may call `stop`. Its functions throw `StreamFuseError`.
package protocol Writer: AnyObject, Sendable {
  /// Begins an answer and ends the one in progress. A refused request has no other effect.
  func start(_ prompt: Prompt, _ config: GenerationConfig) throws
  /// The next piece; nil at the end, once the turn is closed.
  func next() throws -> Piece?
  /// Ends the answer after the last delivered token and closes the turn. Then `next` returns the text that was held
  /// back, if there is some.
  func finish() throws
  /// Ends the answer at its next token.
  func stop()
  /// The log-probabilities of an answer's tokens. `stop` ends it with the code `cancelled`.
  func score(_ text: String, _ answer: String) throws -> [Double]
  /// Measures the latency of passes, unless it is known.
  func prepare() throws
  /// The context and all tokens delivered after it.
  func tokens() throws -> [Int]
  /// The number of these.
  func usedTokens() throws -> Int
  /// The turns so far.
  func messages() throws -> [Message]
  /// The tool calls of the last answer.
  func toolCalls() throws -> [ToolCall]
  /// Statistics of the last answer.
  func statistics() throws -> Statistics
  /// Clears all tokens, and all turns except those that the session began with.
  func reset() throws
  /// Gives the memory of the cache back; the conversation stays.
  func trim() throws
  /// Writes cache, tokens and conversation to a file.
  func save(to file: URL) throws
  /// Reads them back.
  func restore(from file: URL) throws
}
