import CStreamFuse
import CStreamFuseBundle
import Foundation
import StreamFuseCore

/// Tokenizer, chat template and conversation of one session, by the text library.
final class BundleText: SessionText {
  /// The library's handle.
  private let handle: OpaquePointer
  /// What `reset` goes back to.
  private let first: Data
  /// Must outlive the handle.
  private let bundle: ModelBundle

  /// A conversation that begins with these messages.
  init(_ library: OpaquePointer, bundle: ModelBundle, messages: [Message]) throws {
    var made: OpaquePointer?
    self.first = try JSONEncoder().encode(messages)
    self.bundle = bundle
    do {
      try check(sf_new_text(library, &made), sf_text_error(made))
      if !messages.isEmpty {
        try check(first.withCharacters { sf_text_reset(made, $0, $1) }, sf_text_error(made))
      }
    } catch {
      sf_free_text(made)
      throw error
    }
    self.handle = made!
  }

  deinit { sf_free_text(handle) }

  /// Token ids of plain text, with the tokenizer's own marks.
  func encode(_ prompt: String) throws -> [Int64] {
    try ids(of: prompt) { sf_text_encode(handle, $0, $1, 1, $2, $3) }
  }

  /// Token ids of the whole conversation with a new turn of the user.
  func ask(_ words: String) throws -> [Int64] {
    try ids(of: words) { sf_text_ask(handle, $0, $1, $2, $3) }
  }

  /// Forgets a question that was not answered.
  func takeBack() { sf_text_take_back(handle) }

  /// Begins a stream of tokens.
  func begin(stops: [String]) throws {
    let json = try JSONEncoder().encode(stops)
    try check(json.withCharacters { sf_text_begin(handle, $0, $1) }, sf_text_error(handle))
  }

  /// The text that may be shown after this token.
  func push(_ token: Int64) throws -> (text: String, stopped: Bool) {
    var text: UnsafePointer<CChar>?
    var bytes = 0
    let code = sf_text_push(handle, token, &text, &bytes)
    let stopped = code == Int32(SF_END)
    if !stopped { try check(code, sf_text_error(handle)) }
    return (string(text, bytes), stopped)
  }

  /// Text that was held back; an asked turn is closed.
  func end() throws -> String { try string { sf_text_end(handle, $0, $1) } }

  /// The turns so far.
  func messages() throws -> [Message] {
    try JSONDecoder().decode([Message].self, from: Data(string { sf_text_messages(handle, $0, $1) }.utf8))
  }

  /// Forgets all turns but the first messages.
  func reset() throws {
    try check(first.withCharacters { sf_text_reset(handle, $0, $1) }, sf_text_error(handle))
  }

  /// The conversation as bytes.
  func save() throws -> Data {
    var note: UnsafeRawPointer?
    var bytes = 0
    try check(sf_text_save(handle, &note, &bytes), sf_text_error(handle))
    return note.map { Data(bytes: $0, count: bytes) } ?? Data()
  }

  /// Takes a conversation back.
  func restore(_ note: Data) throws {
    try check(note.withUnsafeBytes { sf_text_restore(handle, $0.baseAddress, $0.count) }, sf_text_error(handle))
  }

  /// Calls a function that turns text into token ids.
  private func ids(
    of text: String,
    _ body: (UnsafePointer<CChar>?, Int, UnsafeMutablePointer<UnsafePointer<Int64>?>, UnsafeMutablePointer<Int64>)
      -> Int32
  ) throws -> [Int64] {
    var ids: UnsafePointer<Int64>?
    var count: Int64 = 0
    let code = Data(text.utf8).withCharacters { body($0, $1, &ids, &count) }
    try check(code, sf_text_error(handle))
    return Array(UnsafeBufferPointer(start: ids, count: Int(count)))
  }

  /// Calls a function that hands out text.
  private func string(
    _ body: (UnsafeMutablePointer<UnsafePointer<CChar>?>, UnsafeMutablePointer<Int>) -> Int32
  ) throws -> String {
    var text: UnsafePointer<CChar>?
    var bytes = 0
    try check(body(&text, &bytes), sf_text_error(handle))
    return string(text, bytes)
  }

  /// A copy of text that the library hands out.
  private func string(_ text: UnsafePointer<CChar>?, _ bytes: Int) -> String {
    String(decoding: UnsafeRawBufferPointer(start: text, count: bytes), as: UTF8.self)
  }
}

extension Data {
  /// Gives the bytes as C's characters; never a null pointer.
  fileprivate func withCharacters<Result>(_ body: (UnsafePointer<CChar>?, Int) -> Result) -> Result {
    var terminated = self
    terminated.append(0)
    return terminated.withUnsafeBytes { body($0.baseAddress?.assumingMemoryBound(to: CChar.self), count) }
  }
}
