/// The source of a token, in the order of the core's constants.
public enum Source: String, Sendable, Codable, CaseIterable {
  /// The model itself; the token was not drafted.
  case model
  /// The model's own streams.
  case streams
  /// Prompt look-up: an earlier occurrence of the last tokens.
  case lookup
  /// The bundle's n-gram table.
  case table

  /// The source with this number in the core's header.
  package init(number: Int32) {
    self = Source.allCases.indices.contains(Int(number)) ? Source.allCases[Int(number)] : .model
  }
}

/// A step of an answer.
public struct Piece: Sendable, Equatable, Codable {
  /// Text that this token completes: often empty, sometimes more than the token itself, never part of a character.
  public let text: String
  /// Its id; nil in a last piece of text that was held back as the possible beginning of a stop string.
  public let token: Int?
  /// The source of the token.
  public let source: Source

  /// A step of an answer.
  public init(text: String, token: Int?, source: Source = .model) {
    self.text = text
    self.token = token
    self.source = source
  }

  /// Whether the token was drafted and then accepted by the model.
  public var drafted: Bool { source != .model }
}

/// A whole answer.
public struct Response: Sendable, Equatable {
  /// What the model wrote.
  public let text: String
  /// The tokens that it wrote.
  public let tokens: [Int]
  /// Its statistics.
  public let statistics: Statistics
}

/// The role of a turn in a conversation.
public enum Role: String, Sendable, Codable {
  /// Instructions to the model.
  case system
  /// The user.
  case user
  /// The model.
  case assistant
}

/// A turn of a conversation.
public struct Message: Sendable, Equatable, Codable {
  /// The role of the speaker.
  public let role: Role
  /// The text of the turn.
  public let content: String

  /// A turn of a conversation.
  public init(role: Role, content: String) {
    self.role = role
    self.content = content
  }
}
