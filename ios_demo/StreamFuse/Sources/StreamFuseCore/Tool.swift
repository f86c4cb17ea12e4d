import Foundation

/// A function that the model may call.
///
///     struct City: Decodable { let city: String }
///     let weather = try Tool("weather", "The weather of a city today.") { (arguments: City) in
///       "18 degrees and sunny in \(arguments.city)"
///     }
///     let chat = model.chat(tools: [weather])
///     print(try await chat.respond(to: "What is the weather in Paris?").text)
public struct Tool: Sendable {
  /// Its name: letters, digits, `_` and `-`.
  public let name: String
  /// Tells the model what it does and when to call it.
  public let description: String
  /// JSON schema of its arguments, an object.
  public let parameters: JSONSchema
  /// Computes the result's text from the arguments, a JSON object. An error becomes the result `error: ...`.
  let run: @Sendable (JSONValue) async throws -> String

  /// A function whose arguments fit `parameters`. What `run` throws becomes the result `error: ...`.
  public init(
    _ name: String, _ description: String, parameters: JSONSchema,
    run: @escaping @Sendable (JSONValue) async throws -> String
  ) {
    self.name = name
    self.description = description
    self.parameters = parameters
    self.run = run
  }

  /// A function whose arguments are a type of your own. What `run` throws becomes the result `error: ...`. Throws
  /// `StreamFuseError` with the code `badGrammar` if the type has no schema: see `JSONSchema(for:)`.
  public init<Arguments: Decodable>(
    _ name: String, _ description: String, run: @escaping @Sendable (Arguments) async throws -> String
  ) throws {
    self.init(name, description, parameters: try JSONSchema(for: Arguments.self)) {
      try await run(JSONDecoder().decode(Arguments.self, from: JSONEncoder().encode($0)))
    }
  }

  /// The declaration for the chat template, JSON in OpenAI's format.
  package var json: String {
    #"{"type":"function","function":{"name":\#(quoted(name)),"description":\#(quoted(description)),"#
      + #""parameters":\#(parameters.text)}}"#
  }

  /// The result of a call. A failure is a result too, which the model reads; only cancellation is thrown.
  func result(of call: ToolCall) async throws -> ToolResult {
    do {
      return ToolResult(toolCallID: call.id, content: try await run(call.arguments))
    } catch {
      try Task.checkCancellation()
      return ToolResult(toolCallID: call.id, content: "error: \(Self.reason(of: error))")
    }
  }

  /// An error's message. Foundation's default `localizedDescription` has only the type's name and a number.
  private static func reason(of error: any Error) -> String {
    if error is DecodingError { return "\(error)" }  // its localized description does not say which argument is wrong
    if let words = (error as? any LocalizedError)?.errorDescription { return words }
    return error is any CustomNSError ? error.localizedDescription : "\(error)"
  }
}

/// Whether an answer may, must or must not call tools. Its raw value is the word of every language's configuration.
public enum ToolChoice: RawRepresentable, Sendable, Equatable, Codable {
  /// Any text, in which calls fit the parameters of their tool.
  case auto
  /// Text without calls: `none` in other languages, which in Swift would read as the absence of a choice.
  case never
  /// One call of any tool.
  case required
  /// One call of this tool.
  case tool(String)

  /// `auto`, `none`, `required`, or the name of a tool.
  public init(rawValue: String) {
    self =
      switch rawValue {
      case "auto": .auto
      case "none": .never
      case "required": .required
      default: .tool(rawValue)
      }
  }

  /// `auto`, `none`, `required`, or the name of a tool.
  public var rawValue: String {
    switch self {
    case .auto: "auto"
    case .never: "none"
    case .required: "required"
    case .tool(let name): name
    }
  }
}

/// A call of a `Tool` by the model. A call that was read from a chat, or from a history that has the arguments as JSON
/// text, keeps the order of their keys for the prompts of later chats; `encode` does not write that order.
public struct ToolCall: Sendable, Equatable, Codable {
  /// Identifies the call in its conversation.
  public let id: String
  /// The name of the tool.
  public let name: String
  /// A JSON object that fits the tool's parameters.
  public let arguments: JSONValue
  /// The JSON text that `arguments` were read from; nil if they were not read from text.
  private let argumentsText: String?

  /// A call for the history of a new chat.
  public init(id: String, name: String, arguments: JSONValue) {
    (self.id, self.name, self.arguments, argumentsText) = (id, name, arguments, nil)
  }

  /// A call with these arguments as JSON text. Throws `DecodingError` if they are not JSON.
  package init(id: String, name: String, argumentsText text: String) throws {
    (self.id, self.name, argumentsText) = (id, name, text)
    arguments = try JSONDecoder().decode(JSONValue.self, from: Data(text.utf8))
  }

  /// Compares the arguments, not their text.
  public static func == (one: ToolCall, other: ToolCall) -> Bool {
    (one.id, one.name) == (other.id, other.name) && one.arguments == other.arguments
  }

  /// The arguments as JSON text: as they were read, or with sorted keys. Throws as `encoded` does.
  package var argumentsJSON: String {
    get throws { try argumentsText ?? encoded(arguments) }
  }

  /// The form that messages have, as JSON text. Throws as `encoded` does.
  var json: String {
    get throws {
      let function = #"{"name":\#(quoted(name)),"arguments":\#(try argumentsJSON)}"#
      return #"{"id":\#(quoted(id)),"type":"function","function":\#(function)}"#
    }
  }

  /// The fields of a call beside those of its function.
  private enum CodingKeys: String, CodingKey { case id, type, function }
  /// The fields of a call's function.
  private struct Function: Codable {
    let name: String
    let arguments: JSONValue
    /// The text of the arguments; nil if they were no text.
    var text: String?

    /// What is written.
    private enum CodingKeys: String, CodingKey { case name, arguments }

    init(name: String, arguments: JSONValue) {
      self.name = name
      self.arguments = arguments
    }

    /// Reads arguments that are JSON text too.
    init(from decoder: any Decoder) throws {
      let container = try decoder.container(keyedBy: CodingKeys.self)
      name = try container.decode(String.self, forKey: .name)
      var arguments = try container.decode(JSONValue.self, forKey: .arguments)
      if case .string(let text) = arguments {
        self.text = text
        arguments = (try? JSONDecoder().decode(JSONValue.self, from: Data(text.utf8))) ?? arguments
      }
      guard case .object = arguments else {
        throw DecodingError.dataCorruptedError(
          forKey: .arguments, in: container, debugDescription: "the arguments of a tool call must be a JSON object")
      }
      self.arguments = arguments
    }
  }

  /// Reads {"id", "name", "arguments"}, or the form that messages have. Some histories write it without an id and with
  /// the arguments as JSON text.
  public init(from decoder: any Decoder) throws {
    let container = try decoder.container(keyedBy: CodingKeys.self)
    let function = try container.decodeIfPresent(Function.self, forKey: .function) ?? Function(from: decoder)
    id = try container.decodeIfPresent(String.self, forKey: .id) ?? ""
    (name, arguments, argumentsText) = (function.name, function.arguments, function.text)
  }

  /// Writes the form that messages have.
  public func encode(to encoder: any Encoder) throws {
    var container = encoder.container(keyedBy: CodingKeys.self)
    try container.encode(id, forKey: .id)
    try container.encode("function", forKey: .type)
    try container.encode(Function(name: name, arguments: arguments), forKey: .function)
  }
}

/// The result of a `ToolCall`, for `Chat.stream(results:)`.
public struct ToolResult: Sendable, Equatable, Codable {
  /// `ToolCall.id`.
  public let toolCallID: String
  /// What the tool returned: text, often JSON.
  public let content: String

  /// The result of a call.
  public init(toolCallID: String, content: String) {
    self.toolCallID = toolCallID
    self.content = content
  }

  /// Names as in every language.
  enum CodingKeys: String, CodingKey {
    case toolCallID = "tool_call_id"
    case content
  }
}
