import Foundation

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
  /// The schema or grammar, for a token that it forces.
  case grammar

  /// The source with this number in the core's header.
  package init(number: Int32) {
    self = Source.allCases.indices.contains(Int(number)) ? Source.allCases[Int(number)] : .model
  }
}

/// What a piece of an answer belongs to.
public enum Channel: String, Sendable, Codable, CaseIterable {
  /// The answer itself.
  case answer
  /// What the model thinks before it answers.
  case thinking
  /// A call of a tool; `Response.toolCalls` has it parsed.
  case toolCall = "tool_call"

  /// The channel with this number in the library's header.
  package init(number: Int32) {
    self = Channel.allCases.indices.contains(Int(number)) ? Channel.allCases[Int(number)] : .answer
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
  /// What the text belongs to.
  public let channel: Channel

  /// A step of an answer.
  public init(text: String, token: Int?, source: Source = .model, channel: Channel = .answer) {
    self.text = text
    self.token = token
    self.source = source
    self.channel = channel
  }

  /// Whether the token was drafted and then accepted by the model.
  public var drafted: Bool { source != .model }
}

/// A whole answer.
public struct Response: Sendable, Equatable {
  /// What the model answered.
  public let text: String
  /// What it thought before; often nothing.
  public let thinking: String
  /// The tools that it called.
  public let toolCalls: [ToolCall]
  /// The tokens that it wrote.
  public let tokens: [Int]
  /// Its statistics.
  public let statistics: Statistics

  /// The object that the answer is, for an answer with a schema. Throws `StreamFuseError` with the code `badGrammar` if
  /// the answer ended before the object was complete.
  public func parsed<Value: Decodable>(as type: Value.Type) throws -> Value {
    guard statistics.finishReason != "incomplete" else {
      throw StreamFuseError(
        .badGrammar, "the answer ended after \(tokens.count) tokens, inside its object: raise maxNewTokens, or shorten the prompt")
    }
    do {
      return try JSONDecoder().decode(type, from: Data(text.utf8))
    } catch {
      throw StreamFuseError(.badGrammar, "the answer is no \(type): \(error)")
    }
  }
}

/// The role of a turn in a conversation.
public enum Role: String, Sendable, Codable {
  /// Instructions to the model.
  case system
  /// The user.
  case user
  /// The model.
  case assistant
  /// The result of a tool.
  case tool
}

/// A turn of a conversation.
public struct Message: Sendable, Equatable, Codable {
  /// The role of the speaker.
  public let role: Role
  /// The text of the turn.
  public let content: String
  /// The tools that the model called in this turn.
  public let toolCalls: [ToolCall]?
  /// The call that this turn is the result of.
  public let toolCallID: String?
  /// The name of its tool.
  public let name: String?

  /// A turn of a conversation.
  public init(
    role: Role, content: String, toolCalls: [ToolCall]? = nil, toolCallID: String? = nil, name: String? = nil
  ) {
    self.role = role
    self.content = content
    self.toolCalls = toolCalls
    self.toolCallID = toolCallID
    self.name = name
  }

  /// Names as in chat templates.
  enum CodingKeys: String, CodingKey {
    case role, content, name
    case toolCalls = "tool_calls"
    case toolCallID = "tool_call_id"
  }
}
