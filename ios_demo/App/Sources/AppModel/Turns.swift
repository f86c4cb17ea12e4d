import Foundation
import StreamFuseCore

/// Text of neighbouring tokens that the same source proposed.
public struct Run: Sendable, Equatable, Codable {
  /// The text.
  public var text: String
  /// Who proposed it.
  public let source: Source

  /// Text of one source.
  public init(text: String, source: Source) {
    self.text = text
    self.source = source
  }
}

/// A message of the conversation as it is shown.
public struct Turn: Sendable, Equatable {
  /// The sender.
  public let role: Role
  /// The text by source.
  public private(set) var runs: [Run] = []
  /// The text in blocks of Markdown; empty for the user's turns, which are shown as plain text.
  public private(set) var markdown = Markdown()
  /// How the answer ended: the library's finish reason, or one of `End`; nil for the user's turns, and while it is
  /// written.
  public internal(set) var end: String?
  /// Figures of an answer that has ended.
  public internal(set) var figures: Live?

  /// A message of these parts.
  init(role: Role, runs: [Run] = []) {
    self.role = role
    for run in runs { append(run.text, run.source) }
  }

  /// The whole text.
  public var text: String { runs.map(\.text).joined() }

  /// The library's form of it.
  var message: Message { Message(role: role, content: text) }

  /// What the user asks.
  static func question(_ text: String) -> Turn { Turn(role: .user, runs: [Run(text: text, source: .model)]) }

  /// Whether it is an answer that the model itself ended.
  var isComplete: Bool { end == "stop" }

  /// Whether the model itself ended it, or its limits did.
  var isWhole: Bool { end.map { ![End.stopped, End.left, End.failed].contains($0) } ?? false }

  /// Adds the next piece of an answer; its cost is that of its text.
  mutating func append(_ piece: Piece) { if piece.channel == .answer { append(piece.text, piece.source) } }

  private mutating func append(_ text: String, _ source: Source) {
    runs.append(text, source)
    if role != .user { markdown.append(text, source) }
  }
}

extension Turn: Codable {
  private enum CodingKeys: String, CodingKey { case role, runs, end, figures }

  public init(from decoder: any Decoder) throws {
    let values = try decoder.container(keyedBy: CodingKeys.self)
    self.init(role: try values.decode(Role.self, forKey: .role), runs: try values.decode([Run].self, forKey: .runs))
    end = try values.decodeIfPresent(String.self, forKey: .end)
    figures = try values.decodeIfPresent(Live.self, forKey: .figures)
  }

  public func encode(to encoder: any Encoder) throws {
    var values = encoder.container(keyedBy: CodingKeys.self)
    try values.encode(role, forKey: .role)
    try values.encode(runs, forKey: .runs)
    try values.encodeIfPresent(end, forKey: .end)
    try values.encodeIfPresent(figures, forKey: .figures)
  }
}

extension [Run] {
  /// Adds text; that of one source stays one run.
  mutating func append(_ text: String, _ source: Source) {
    if text.isEmpty { return }
    if last?.source == source {
      self[count - 1].text += text
    } else {
      append(Run(text: text, source: source))
    }
  }
}

/// How an answer may end beside the library's `stop`, `length` and `context`.
enum End {
  /// The user stopped it.
  static let stopped = "stopped"
  /// The user left the app while it was written.
  static let left = "left"
  /// An error.
  static let failed = "failed"
}
