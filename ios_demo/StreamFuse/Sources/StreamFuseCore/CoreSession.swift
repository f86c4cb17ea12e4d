import CStreamFuse
import Foundation

/// A session on token ids only, with your own engine: the core's sequence. Used by one thread at a time, except for
/// `stop`.
final class CoreSession: Writer, @unchecked Sendable {  // a Session sees to "one at a time"; stop may come from any thread
  /// The core's handle.
  let handle: OpaquePointer
  /// Its tables must outlive the handle.
  private let model: CoreModel

  /// Takes the engine.
  init(_ model: CoreModel, _ engine: EngineTable) throws {
    var table = engine.table
    var made: OpaquePointer?
    do {
      try check(sf_sequence_new(model.handle, &table, nil, &made), sf_sequence_error(made))
    } catch {
      sf_sequence_free(made)
      throw error
    }
    self.handle = made!
    self.model = model
  }

  deinit { sf_sequence_free(handle) }

  /// Starts a text after the whole context.
  func start(_ prompt: Prompt, _ config: GenerationConfig) throws {
    guard case .tokens(let ids) = prompt, config.stop ?? [] == [], config.schema == nil, config.regex == nil,
      config.grammar == nil, config.toolChoice == nil
    else {
      throw StreamFuseError(
        .badArgument, "this model has no tokenizer: give it token ids, and no stop strings, schema, grammar or tools")
    }
    try config.withCOptions { options in
      try check(
        sf_sequence_start(handle, ids.map(Int64.init), Int64(ids.count), options), sf_sequence_error(handle))
    }
  }

  /// Always throws: a session of token ids has no tokenizer.
  func score(_ text: String, _ answer: String) throws -> [Double] {
    throw StreamFuseError(.badArgument, "this model has no tokenizer, so it cannot score text")
  }

  /// The next token; nil if the text has ended.
  func next() throws -> Piece? {
    var token = sf_token()
    let code = sf_sequence_next(handle, &token)
    if code == Int32(SF_END) { return nil }
    try check(code, sf_sequence_error(handle))
    var top: UnsafePointer<sf_top_token>?
    let count = sf_sequence_top(handle, &top)
    return Piece(
      text: "", token: Int(token.id), source: Source(number: token.source), logProb: Piece.logProb(token.log_prob),
      topLogProbs: UnsafeBufferPointer(start: top, count: Int(count)).map { one in
        TokenLogProb(token: Int(one.id), logProb: Double(one.log_prob), text: "")
      })
  }

  /// Ends the text after the last delivered token.
  func finish() throws { try check(sf_sequence_finish(handle, nil), sf_sequence_error(handle)) }

  /// None.
  func messages() -> [Message] { [] }

  /// None.
  func toolCalls() -> [ToolCall] { [] }

  /// Ends the text at its next token. Any thread may call it.
  func stop() { sf_sequence_stop(handle) }

  /// Clears all tokens.
  func reset() throws { try check(sf_sequence_reset(handle), sf_sequence_error(handle)) }

  /// Gives the memory of the cache back.
  func trim() throws { try check(sf_sequence_trim(handle), sf_sequence_error(handle)) }

  /// Measures the latency of passes, unless it is known.
  func prepare() throws { try check(sf_sequence_prepare(handle), sf_sequence_error(handle)) }

  /// The context and all tokens delivered after it.
  func tokens() throws -> [Int] {
    var ids: UnsafePointer<Int64>?
    var count: Int64 = 0, cached: Int64 = 0
    try check(sf_sequence_tokens(handle, &ids, &count, &cached), sf_sequence_error(handle))
    return UnsafeBufferPointer(start: ids, count: Int(count)).map(Int.init)
  }

  /// The number of these.
  func usedTokens() throws -> Int {
    var count: Int64 = 0
    try check(sf_sequence_tokens(handle, nil, &count, nil), sf_sequence_error(handle))
    return Int(count)
  }

  /// Statistics of the last text.
  func statistics() throws -> Statistics {
    guard let json = sf_sequence_statistics(handle) else { throw StreamFuseError(.outOfMemory, "no memory for the statistics") }
    return try Statistics(json: Data(bytes: json, count: strlen(json)))
  }

  /// Writes tokens and cache to a file.
  func save(to file: URL) throws {
    try check(
      file.withUnsafeFileSystemRepresentation { sf_sequence_save(handle, $0, nil, 0) }, sf_sequence_error(handle))
  }

  /// Reads them back.
  func restore(from file: URL) throws {
    try check(
      file.withUnsafeFileSystemRepresentation { sf_sequence_restore(handle, $0, nil, nil) }, sf_sequence_error(handle))
  }
}
