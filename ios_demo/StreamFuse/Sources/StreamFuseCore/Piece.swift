/// Who proposed a token. The order is that of the core's numbers.
public enum Source: String, Sendable, Codable, CaseIterable {
  /// The model itself: nobody had drafted it.
  case model
  /// The model's own streams.
  case streams
  /// A passage of the text so far that began alike.
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
  /// What this token completes: often nothing, sometimes more than the token itself, never part of a character.
  public let text: String
  /// Its id. Nil in a last piece that is only text: it was held back as the possible beginning of a stop string.
  public let token: Int?
  /// Who proposed the token.
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
  /// What it took.
  public let statistics: Statistics
}

/// Who says something in a conversation.
public enum Role: String, Sendable, Codable {
  /// Instructions to the model.
  case system
  /// The person who asks.
  case user
  /// The model.
  case assistant
}

/// A turn of a conversation.
public struct Message: Sendable, Equatable, Codable {
  /// Who says it.
  public let role: Role
  /// What is said.
  public let content: String

  /// A turn of a conversation.
  public init(role: Role, content: String) {
    self.role = role
    self.content = content
  }
}
