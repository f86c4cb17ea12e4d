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
  /// The constraint of the answer, which forces the token: `GenerationConfig.schema` and the like.
  case grammar
  /// Look-up in earlier answers: `LoadOptions.memoryFile`.
  case memory

  /// The source with this number in the core's header.
  package init(number: Int32) {
    self = Source.allCases.indices.contains(Int(number)) ? Source.allCases[Int(number)] : .model
  }
}

/// What a piece's text is part of.
public enum Channel: String, Sendable, Codable, CaseIterable {
  /// The answer itself.
  case answer
  /// What the model writes before it answers, between tags such as `<think>` and `</think>`.
  case thinking
  /// A tool call, in the form of the model's family. `Response.toolCalls` has the calls.
  case toolCall = "tool_call"

  /// The channel with this number in the library's header.
  package init(number: Int32) {
    self = Channel.allCases.indices.contains(Int(number)) ? Channel.allCases[Int(number)] : .answer
  }
}

/// A token that could have been chosen.
public struct TokenLogProb: Sendable, Equatable, Codable {
  /// Its id.
  public let token: Int
  /// Natural logarithm of its probability, as `Piece.logProb`.
  public let logProb: Double
  /// Its text (U+FFFD for part of a character), or the name of a special token; empty from a model without a tokenizer.
  public let text: String

  /// A token that could have been chosen.
  public init(token: Int, logProb: Double, text: String) {
    self.token = token
    self.logProb = logProb
    self.text = text
  }

  /// Names as in every language.
  enum CodingKeys: String, CodingKey {
    case token
    case logProb = "log_prob"
    case text
  }
}

/// A step of an answer.
public struct Piece: Sendable, Equatable, Codable {
  /// Text that this token completes: often empty, sometimes more than the token itself, never part of a character.
  public let text: String
  /// Its id; nil in a piece of text that was held back as the possible beginning of a stop string or tag.
  public let token: Int?
  /// The source of the token.
  public let source: Source
  /// What the text is part of. Only `answer` is for the reader.
  public let channel: Channel
  /// Natural logarithm of the model's probability of the token: softmax over the whole vocabulary, before temperature,
  /// filters, penalty and constraint. Nil unless `GenerationConfig.logProbs` or `topLogProbs` is set, or without a token.
  public let logProb: Double?
  /// The `GenerationConfig.topLogProbs` most probable tokens at this position, best first, ties by the smaller id. A token
  /// that was sampled or constrained may be none of them.
  public let topLogProbs: [TokenLogProb]

  /// A step of an answer.
  public init(
    text: String, token: Int?, source: Source = .model, channel: Channel = .answer, logProb: Double? = nil,
    topLogProbs: [TokenLogProb] = []
  ) {
    self.text = text
    self.token = token
    self.source = source
    self.channel = channel
    self.logProb = logProb
    self.topLogProbs = topLogProbs
  }

  /// The log-probability of the core's structures, where NaN is none.
  package static func logProb(_ given: Float) -> Double? { given.isNaN ? nil : Double(given) }

  /// Whether the token was drafted and then accepted by the model.
  public var drafted: Bool { source != .model }
}

/// A whole answer.
public struct Response: Sendable, Equatable {
  /// The text for the reader: the pieces of `Channel.answer`.
  public let text: String
  /// What the model wrote before it: the pieces of `Channel.thinking`.
  public let thinking: String
  /// Its tool calls that were not answered: see `Chat.respond`, `maxToolRounds`.
  public let toolCalls: [ToolCall]
  /// The ids of all its tokens.
  public let tokens: [Int]
  /// The log-probability of each of `tokens` (`Piece.logProb`); empty unless `GenerationConfig.logProbs` or `topLogProbs`
  /// is set.
  public let logProbs: [Double]
  /// The most probable tokens at the position of each of `tokens` (`Piece.topLogProbs`); empty unless
  /// `GenerationConfig.topLogProbs` is set.
  public let topLogProbs: [[TokenLogProb]]
  /// Counters and times.
  public let statistics: Statistics

  /// The object that the answer to a request with a schema spells. Throws `StreamFuseError` with the code `notParsed`
  /// if the answer ended before the object was complete, or does not fit the type.
  public func parsed<Value: Decodable>(as type: Value.Type) throws -> Value {
    let count = "\(statistics.generatedTokens) tokens"
    switch statistics.finishReason {
    case "incomplete":
      throw StreamFuseError(
        .notParsed,
        "the answer is incomplete: it ended after \(count), before its object did; raise maxNewTokens, begin a new "
          + "chat if the context is full, or bound the strings and lists of the schema (maxLength, maxItems)")
    case "stopped":
      throw StreamFuseError(
        .notParsed, "the answer was stopped after \(count), before its object was complete; ask again")
    default: break
    }
    do {
      return try JSONDecoder().decode(type, from: Data(text.utf8))
    } catch {
      throw StreamFuseError(
        .notParsed, "the answer does not fit \(type): \(error); ask with its schema, respond(to:as: \(type).self)")
    }
  }
}

/// The role of a turn in a conversation.
public enum Role: String, Sendable, Codable {
  /// Instructions to the model.
  case system
  /// Instructions to the model from the app, for templates that distinguish them from the system message.
  case developer
  /// The user.
  case user
  /// The model.
  case assistant
  /// The result of a tool call.
  case tool
}

/// A turn of a conversation.
public struct Message: Sendable, Equatable, Codable {
  /// The role of the speaker.
  public let role: Role
  /// The text of the turn, without tool calls.
  public let content: String
  /// The calls of a model's turn.
  public let toolCalls: [ToolCall]?
  /// The call that a `tool` turn is the result of.
  public let toolCallID: String?
  /// The function of that call.
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

  /// Reads a turn of any language's history; content that is missing or null is empty.
  public init(from decoder: any Decoder) throws {
    let values = try decoder.container(keyedBy: CodingKeys.self)
    self.init(
      role: try values.decode(Role.self, forKey: .role),
      content: try values.decodeIfPresent(String.self, forKey: .content) ?? "",
      toolCalls: try values.decodeIfPresent([ToolCall].self, forKey: .toolCalls),
      toolCallID: try values.decodeIfPresent(String.self, forKey: .toolCallID),
      name: try values.decodeIfPresent(String.self, forKey: .name))
  }

  /// The turn as JSON text, with the arguments of calls as they were read. Throws as `encoded` does.
  package var json: String {
    get throws {
      var members = [#""role":\#(quoted(role.rawValue))"#, #""content":\#(quoted(content))"#]
      if let toolCalls {
        let calls = try toolCalls.map { try $0.json }
        members.append(#""tool_calls":[\#(calls.joined(separator: ","))]"#)
      }
      if let toolCallID { members.append(#""tool_call_id":\#(quoted(toolCallID))"#) }
      if let name { members.append(#""name":\#(quoted(name))"#) }
      return "{\(members.joined(separator: ","))}"
    }
  }

  /// Names as in chat templates.
  enum CodingKeys: String, CodingKey {
    case role, content, name
    case toolCalls = "tool_calls"
    case toolCallID = "tool_call_id"
  }
}
