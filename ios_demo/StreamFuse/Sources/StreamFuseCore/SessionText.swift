import Foundation

/// The text around the tokens of one session: what an app implements to bring a tokenizer of its own. The module
/// `StreamFuseText` implements it with the library that opens bundles.
///
/// A session makes one, owns it, and calls it from its own thread alone, so it need not be Sendable.
public protocol SessionText: AnyObject {
  /// Token ids of plain text, with the marks that the tokenizer itself puts around a prompt.
  func encode(_ prompt: String) throws -> [Int64]
  /// Begins a stream of tokens that ends before any of these strings.
  func begin(stops: [String]) throws
  /// The text that may be shown after this token, and whether a stop string is complete.
  func push(_ token: Int64) throws -> (text: String, stopped: Bool)
  /// Ends the stream: text that was held back. An asked turn is closed with what was shown.
  func end() throws -> String

  /// Adds a turn of the user: the token ids of the whole conversation.
  func ask(_ words: String) throws -> [Int64]
  /// Forgets a question that was not answered, and ends the stream of tokens that was to answer it.
  func takeBack()
  /// The turns so far; an answer that is being written comes when it ends.
  func messages() throws -> [Message]
  /// Forgets all turns but the messages that the session began with.
  func reset() throws

  /// What goes into a saved session beside its tokens.
  func save() throws -> Data
  /// Takes back what `save` gave, or refuses it and changes nothing.
  func restore(_ note: Data) throws
}

/// A tokenizer without conversations implements the first four functions.
extension SessionText {
  /// Refuses: there is no chat template.
  public func ask(_ words: String) throws -> [Int64] {
    throw StreamFuseError(.badArgument, "this tokenizer has no chat template; use a completion")
  }
  /// Nothing to forget.
  public func takeBack() {}
  /// No turns.
  public func messages() throws -> [Message] { [] }
  /// Nothing to forget.
  public func reset() throws {}
  /// Nothing to keep.
  public func save() throws -> Data { Data() }
  /// Nothing to take back.
  public func restore(_ note: Data) throws {}
}
