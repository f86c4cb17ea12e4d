import Foundation

/// A JSON schema, draft 2020-12: of an answer (`GenerationConfig.schema`) or of a tool's parameters. Properties are
/// written in the order given.
///
///     let schema = JSONSchema.object(["name": .string(), "age": .integer, "city": .string(oneOf: ["Paris", "Rome"])])
///
/// docs/structured.md lists what is supported; an unsupported keyword is refused when an answer begins.
public struct JSONSchema: Sendable, Equatable, Codable, CustomStringConvertible {
  /// The JSON text.
  public let text: String

  /// A schema that is JSON text.
  public init(_ text: String) { self.text = text }

  /// The JSON text.
  public var description: String { text }

  /// Reads the JSON text, as a string.
  public init(from decoder: any Decoder) throws { text = try decoder.singleValueContainer().decode(String.self) }

  /// Writes the JSON text, as a string.
  public func encode(to encoder: any Encoder) throws {
    var container = encoder.singleValueContainer()
    try container.encode(text)
  }

  /// A whole number.
  public static let integer = JSONSchema(#"{"type":"integer"}"#)
  /// A number.
  public static let number = JSONSchema(#"{"type":"number"}"#)
  /// True or false.
  public static let boolean = JSONSchema(#"{"type":"boolean"}"#)
  /// Nothing.
  public static let null = JSONSchema(#"{"type":"null"}"#)

  /// Text of at most this many characters, that matches a regular expression.
  public static func string(maxLength: Int? = nil, pattern: String? = nil) -> JSONSchema {
    var members = [#""type":"string""#]
    if let maxLength { members.append(#""maxLength":\#(maxLength)"#) }
    if let pattern { members.append(#""pattern":\#(quoted(pattern))"#) }
    return JSONSchema("{\(members.joined(separator: ","))}")
  }

  /// One of these texts.
  public static func string(oneOf values: [String]) -> JSONSchema {
    JSONSchema(#"{"enum":[\#(values.map(quoted).joined(separator: ","))]}"#)
  }

  /// A list of values of one form.
  public static func array(of items: JSONSchema, minItems: Int? = nil, maxItems: Int? = nil) -> JSONSchema {
    var members = [#""type":"array""#, #""items":\#(items.text)"#]
    if let minItems { members.append(#""minItems":\#(minItems)"#) }
    if let maxItems { members.append(#""maxItems":\#(maxItems)"#) }
    return JSONSchema("{\(members.joined(separator: ","))}")
  }

  /// An object with these properties and no others. All are required except the optional ones.
  public static func object(
    _ properties: KeyValuePairs<String, JSONSchema>, optional: Set<String> = []
  ) -> JSONSchema {
    object(properties.map { ($0.key, $0.value) }, optional: optional)
  }

  /// The same from a list.
  static func object(_ properties: [(String, JSONSchema)], optional: Set<String>) -> JSONSchema {
    let listed = properties.map { "\(quoted($0)):\($1.text)" }.joined(separator: ",")
    let required = properties.map(\.0).filter { !optional.contains($0) }.map(quoted).joined(separator: ",")
    return JSONSchema(
      #"{"type":"object","properties":{\#(listed)},"required":[\#(required)],"additionalProperties":false}"#)
  }

  /// A value of one of these forms.
  public static func anyOf(_ schemas: [JSONSchema]) -> JSONSchema {
    JSONSchema(#"{"anyOf":[\#(schemas.map(\.text).joined(separator: ","))]}"#)
  }

  /// This form, or null.
  public var nullable: JSONSchema { .anyOf([self, .null]) }
}

/// A text as JSON.
package func quoted(_ text: String) -> String {
  var quoted = "\""
  for scalar in text.unicodeScalars {
    switch scalar {
    case "\"": quoted += "\\\""
    case "\\": quoted += "\\\\"
    case _ where scalar.value < 0x20: quoted += "\\u" + String(scalar.value + 0x10000, radix: 16).dropFirst()
    default: quoted.unicodeScalars.append(scalar)
    }
  }
  return quoted + "\""
}
