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
  /// Its name, by which the model calls it.
  public let name: String
  /// What it does, for the model.
  public let description: String
  /// The form of its arguments, an object.
  public let parameters: JSONSchema
  /// Runs it. The argument is a JSON object of the form of `parameters`; the result is text for the model. What it
  /// throws becomes the result, so that the model can go on.
  let run: @Sendable (JSONValue) async throws -> String

  /// A function with arguments of any form.
  public init(
    _ name: String, _ description: String, parameters: JSONSchema,
    run: @escaping @Sendable (JSONValue) async throws -> String
  ) {
    self.name = name
    self.description = description
    self.parameters = parameters
    self.run = run
  }

  /// A function whose arguments are a type of your own; `JSONSchema(for:)` says which types have a schema.
  public init<Arguments: Decodable>(
    _ name: String, _ description: String, run: @escaping @Sendable (Arguments) async throws -> String
  ) throws {
    self.init(name, description, parameters: try JSONSchema(for: Arguments.self)) {
      try await run(JSONDecoder().decode(Arguments.self, from: JSONEncoder().encode($0)))
    }
  }

  /// What the chat template gets, JSON.
  package var json: String {
    #"{"type":"function","function":{"name":\#(quoted(name)),"description":\#(quoted(description)),"#
      + #""parameters":\#(parameters.text)}}"#
  }

  /// The result of a call, or the error as text.
  func result(of call: ToolCall) async throws -> ToolResult {
    do {
      return ToolResult(toolCallID: call.id, content: try await run(call.arguments))
    } catch is CancellationError {
      throw CancellationError()
    } catch {
      return ToolResult(toolCallID: call.id, content: "error: \(error.localizedDescription)")
    }
  }
}

/// Whether an answer may, must or must not call tools.
public enum ToolChoice: Sendable, Equatable, Codable {
  /// Any text, in which calls fit the parameters of their tool.
  case auto
  /// Text without calls.
  case none
  /// One call of any tool.
  case required
  /// One call of this tool.
  case tool(String)

  /// As in every language.
  package var word: String {
    switch self {
    case .auto: "auto"
    case .none: "none"
    case .required: "required"
    case .tool(let name): name
    }
  }
}

/// A call that the model wrote.
public struct ToolCall: Sendable, Equatable, Codable {
  /// Distinguishes the calls of a conversation.
  public let id: String
  /// The name of the tool.
  public let name: String
  /// An object of the form of the tool's parameters.
  public let arguments: JSONValue

  /// The fields of a call, by itself and in a conversation's messages.
  private enum CodingKeys: String, CodingKey { case id, type, name, arguments, function }
  /// The fields of a call's function.
  private struct Function: Codable {
    let name: String
    let arguments: JSONValue
  }

  /// Reads {"id", "name", "arguments"}, or the form that messages have.
  public init(from decoder: any Decoder) throws {
    let container = try decoder.container(keyedBy: CodingKeys.self)
    id = try container.decode(String.self, forKey: .id)
    if let function = try container.decodeIfPresent(Function.self, forKey: .function) {
      (name, arguments) = (function.name, function.arguments)
    } else {
      name = try container.decode(String.self, forKey: .name)
      arguments = try container.decode(JSONValue.self, forKey: .arguments)
    }
  }

  /// Writes the form that messages have.
  public func encode(to encoder: any Encoder) throws {
    var container = encoder.container(keyedBy: CodingKeys.self)
    try container.encode(id, forKey: .id)
    try container.encode("function", forKey: .type)
    try container.encode(Function(name: name, arguments: arguments), forKey: .function)
  }
}

/// What a call gave back: `Chat.stream(results:)`.
public struct ToolResult: Sendable, Equatable, Codable {
  /// The call.
  public let toolCallID: String
  /// The result, text for the model.
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
