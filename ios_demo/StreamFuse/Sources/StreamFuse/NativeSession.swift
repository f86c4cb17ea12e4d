import CStreamFuse
import CStreamFuseNative
import Foundation
import StreamFuseCore

/// A chat or a completion, by the native library: its tokens, its cache, its text and its turns.
final class NativeSession: Writer, @unchecked Sendable {  // a Session sees to "one at a time"; stop may come from any thread
  /// The library's handle.
  private let handle: OpaquePointer
  /// Whether prompts are turns.
  private let isChat: Bool

  /// A session with an empty cache. `engine` runs the graphs if the native engine does not.
  init(_ model: NativeModel, _ use: Model.Use, engine: (any Engine)?, engineMs: Double) throws {
    var made: OpaquePointer?
    var options = sf_session_options()
    options.size = MemoryLayout<sf_session_options>.size
    options.engine_load_ms = engineMs
    if engine == nil { try needMemory(model.cacheBytes) }
    let texts = try Self.texts(use)
    // Last of what may throw: the library owns it from its call on, and releases it.
    var table = try engine?.makeTable(within: availableMemory()).table
    let code: Int32 = withCString(engine?.device) { device in
      withUnsafePointer(to: &table) { place in
        options.device = device
        options.backend = engine == nil ? nil : UnsafeRawPointer(place).assumingMemoryBound(to: sf_backend.self)
        switch use {
        case .completion(let adapter):
          return withCString(adapter) { name in
            options.adapter = name
            return sf_completion_new(model.handle, &options, &made)
          }
        case .chat(let instructions, _, let tools, let variables, let policy, let adapter):
          options.context_policy = policy.rawValue
          return withCharacters(texts) { places in
            if instructions != nil { (options.system, options.system_bytes) = places[0] }
            (options.history, options.history_bytes) = places[1]
            if !tools.isEmpty { (options.tools, options.tools_bytes) = places[2] }
            if !variables.isEmpty { (options.template_variables, options.template_variables_bytes) = places[3] }
            if adapter != nil { options.adapter = places[4].0 }
            return sf_chat_new(model.handle, &options, &made)
          }
        }
      }
    }
    do {
      try check(code, sf_session_error(made))
    } catch {
      sf_session_free(made)
      throw error
    }
    self.handle = made!
    self.isChat = if case .chat = use { true } else { false }
  }

  /// The texts that a session is made with, in the order of the options that take them.
  private static func texts(_ use: Model.Use) throws -> [String] {
    guard case .chat(let instructions, let history, let tools, let variables, _, let adapter) = use else { return [] }
    return [
      instructions ?? "", "[\(try history.map { try $0.json }.joined(separator: ","))]",
      "[\(tools.map(\.json).joined(separator: ","))]", try encoded(variables), adapter ?? "",
    ]
  }

  deinit { sf_session_free(handle) }

  /// Begins an answer.
  func start(_ prompt: Prompt, _ config: GenerationConfig) throws {
    if case .results = prompt, !isChat {
      throw StreamFuseError(.badArgument, "a completion has no tools; results are for Model.chat")
    }
    if case .turn = prompt, !isChat {
      throw StreamFuseError(.badArgument, "a completion continues text or token ids; turns are for Model.chat")
    }
    if case .text = prompt, isChat {
      throw StreamFuseError(.badArgument, "a chat takes turns; text is continued by Model.completion")
    }
    let words =
      switch prompt {
      case .tokens: ""
      case .text(let words), .turn(let words): words
      case .results(let results): try encoded(results)
      }
    let texts = [
      try encoded(config.stop ?? []), config.schema?.text ?? "", config.regex ?? "", config.grammar ?? "",
      config.toolChoice?.rawValue ?? "", words,
    ]
    let code = try config.withCOptions { sampling in
      withCharacters(texts) { places in
        var options = sf_answer_options()
        options.size = MemoryLayout<sf_answer_options>.size
        options.sampling = sampling
        (options.stops, options.stops_bytes) = places[0]
        if config.schema != nil { (options.schema, options.schema_bytes) = places[1] }
        if config.regex != nil { (options.regex, options.regex_bytes) = places[2] }
        if config.grammar != nil { (options.grammar, options.grammar_bytes) = places[3] }
        if config.toolChoice != nil { options.tool_choice = places[4].0 }
        switch prompt {
        case .tokens(let ids):
          return sf_session_start_tokens(handle, ids.map(Int64.init), Int64(ids.count), &options)
        case .text, .turn:
          return sf_session_start(handle, places[5].0, places[5].1, &options)
        case .results:
          return sf_session_start_tool_results(handle, places[5].0, places[5].1, &options)
        }
      }
    }
    try need(code)
  }

  /// The log-probabilities of an answer's tokens.
  func score(_ text: String, _ answer: String) throws -> [Double] {
    var found: UnsafePointer<Float>?
    var count: Int64 = 0
    let code = withCharacters([text, answer]) { places in
      sf_session_score(handle, places[0].0, places[0].1, places[1].0, places[1].1, &found, &count)
    }
    try need(code)
    return UnsafeBufferPointer(start: found, count: Int(count)).map(Double.init)
  }

  /// The next piece; nil at the end.
  func next() throws -> Piece? {
    var piece = sf_piece()
    let code = sf_session_next(handle, &piece)
    if code == Int32(SF_END) { return nil }
    try need(code)
    var top: UnsafePointer<sf_top_piece>?
    var count: Int32 = 0
    try need(sf_session_top(handle, &top, &count))
    return Piece(
      text: string(piece.text, piece.bytes), token: piece.token < 0 ? nil : Int(piece.token),
      source: Source(number: piece.source), channel: Channel(number: piece.channel),
      logProb: Piece.logProb(piece.log_prob),
      topLogProbs: UnsafeBufferPointer(start: top, count: Int(count)).map { one in
        TokenLogProb(token: Int(one.token), logProb: Double(one.log_prob), text: string(one.text, one.bytes))
      })
  }

  /// Ends the answer after the last delivered token.
  func finish() throws { try need(sf_session_finish(handle)) }

  /// Ends the answer at its next token. Any thread may call it.
  func stop() { sf_session_stop(handle) }

  /// Gives the memory of the cache back.
  func trim() throws { try need(sf_session_trim(handle)) }

  /// Measures the latency of passes, unless it is known.
  func prepare() throws { try need(sf_session_prepare(handle)) }

  /// The context and all tokens delivered after it.
  func tokens() throws -> [Int] {
    var ids: UnsafePointer<Int64>?
    var count: Int64 = 0
    try need(sf_session_tokens(handle, &ids, &count, nil))
    return UnsafeBufferPointer(start: ids, count: Int(count)).map(Int.init)
  }

  /// The number of these.
  func usedTokens() -> Int { Int(sf_session_used_tokens(handle)) }

  /// The turns so far.
  func messages() throws -> [Message] {
    var json: UnsafePointer<CChar>?
    var bytes = 0
    try need(sf_session_messages(handle, &json, &bytes))
    return try JSONDecoder().decode([Message].self, from: withArgumentsAsText(string(json, bytes)))
  }

  /// The tool calls of the last answer.
  func toolCalls() throws -> [ToolCall] {
    var json: UnsafePointer<CChar>?
    var bytes = 0
    try need(sf_session_tool_calls(handle, &json, &bytes))
    return try JSONDecoder().decode([ToolCall].self, from: withArgumentsAsText(string(json, bytes)))
  }

  /// Statistics of the last answer.
  func statistics() throws -> Statistics {
    guard let json = sf_session_statistics(handle) else {
      throw StreamFuseError(.outOfMemory, "no memory for the statistics")
    }
    return try Statistics(json: Data(bytes: json, count: strlen(json)))
  }

  /// Clears all tokens, and all turns except those that it was created with.
  func reset() throws { try need(sf_session_reset(handle)) }

  /// Writes cache, tokens and conversation to a file.
  func save(to file: URL) throws { try need(file.withUnsafeFileSystemRepresentation { sf_session_save(handle, $0) }) }

  /// Reads them back. A conversation with turns that cannot be shown is refused, and the session is then reset.
  func restore(from file: URL) throws {
    try need(file.withUnsafeFileSystemRepresentation { sf_session_restore(handle, $0) })
    guard isChat else { return }
    do {
      _ = try messages()
    } catch let error as DecodingError {
      try reset()
      throw StreamFuseError(
        .badFile,
        "\(file.path) has a turn that this library cannot read, so the session was reset (\(reason(of: error)))")
    }
  }

  /// Throws the library's error message unless `code` is `SF_OK`.
  private func need(_ code: Int32) throws { try check(code, sf_session_error(handle)) }

  /// A copy of text that the library hands out.
  private func string(_ text: UnsafePointer<CChar>?, _ bytes: Int) -> String {
    String(decoding: UnsafeRawBufferPointer(start: text, count: bytes), as: UTF8.self)
  }
}

/// The library's messages or calls, in which the arguments of each call are JSON text instead of an object: a decoder
/// loses the order of an object's keys. The library writes JSON without white space.
func withArgumentsAsText(_ json: String) -> Data {
  let bytes = Array(json.utf8), key = Array(#""arguments":{"#.utf8)  // a string before a colon is a key
  let quote = UInt8(ascii: "\"")
  /// The end of the string that begins here, or of another byte.
  func end(of start: Int) -> Int {
    guard bytes[start] == quote else { return start + 1 }
    var place = start + 1
    while bytes[place] != quote { place += bytes[place] == UInt8(ascii: "\\") ? 2 : 1 }
    return place + 1
  }
  var written = Data(), place = 0
  while place < bytes.count {
    let start = place
    if bytes[start] != quote || !bytes[start...].starts(with: key) {
      place = end(of: start)
      written += bytes[start..<place]
      continue
    }
    place += key.count
    var depth = 1
    while depth > 0 {
      if bytes[place] == UInt8(ascii: "{") { depth += 1 }
      if bytes[place] == UInt8(ascii: "}") { depth -= 1 }
      place = end(of: place)
    }
    let object = bytes[(start + key.count - 1)..<place]
    written += key.dropLast() + quoted(String(decoding: object, as: UTF8.self)).utf8
  }
  return written
}

/// What does not fit, without the path to it.
private func reason(of error: DecodingError) -> String {
  switch error {
  case .typeMismatch(_, let context), .valueNotFound(_, let context), .keyNotFound(_, let context),
    .dataCorrupted(let context):
    context.debugDescription
  @unknown default: "\(error)"
  }
}

/// Calls `body` with the texts as C characters, zero-terminated and never null, and their numbers of bytes.
private func withCharacters<Result>(
  _ texts: [String], _ body: ([(UnsafePointer<CChar>?, Int)]) throws -> Result
) rethrows -> Result {
  let bytes = texts.map { Data($0.utf8) + [0] }
  func fill(_ places: [(UnsafePointer<CChar>?, Int)]) throws -> Result {
    guard places.count < bytes.count else { return try body(places) }
    let own = bytes[places.count]
    return try own.withUnsafeBytes {
      try fill(places + [($0.baseAddress?.assumingMemoryBound(to: CChar.self), own.count - 1)])
    }
  }
  return try fill([])
}
