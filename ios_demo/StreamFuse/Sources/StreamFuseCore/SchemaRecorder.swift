import Foundation

extension JSONSchema {
  /// The schema of a type: its stored properties in the order in which its `init(from:)` decodes them.
  ///
  /// Supported are strings, numbers, booleans, optionals (which may be left out), arrays, nested types, and enumerations
  /// that are `CaseIterable` with strings as raw values. Whole numbers are bounded by the range of their type and by
  /// ±(2^53 - 1), up to which JSON numbers are exact. Throws `StreamFuseError` with the code `badGrammar` for any other
  /// type, also one that contains itself; the message names the property. Write the schema of such a type by hand.
  public init<Value: Decodable>(for type: Value.Type) throws {
    self = try Recorder.schema(of: type, at: "\(type)", inside: []).schema
  }
}

/// A decoder that returns a sample value for each request, and records the schemas of the requested types.
private final class Recorder: Decoder {
  let codingPath: [any CodingKey] = []
  let userInfo: [CodingUserInfoKey: Any] = [:]
  /// Where this is in the outermost type, for error messages.
  let place: String
  /// The types from the outermost one to this.
  let types: [Any.Type]
  /// The properties of an object, in order.
  var properties: [(String, JSONSchema)] = []
  /// The names of those that may be left out.
  var optional: Set<String> = []
  /// The schema of a list's items.
  var items: JSONSchema?
  /// The schema of the one value that the type is coded as.
  var single: JSONSchema?
  /// Whether the type is coded as a list.
  var isList = false

  init(_ place: String, _ types: [Any.Type]) { (self.place, self.types) = (place, types) }

  /// The schema of a type, and a value of it; `inside`: the types that contain it.
  static func schema<Value: Decodable>(
    of type: Value.Type, at place: String, inside types: [Any.Type]
  ) throws -> (schema: JSONSchema, value: Value) {
    if let known = known(type) { return known }
    if let choices = type as? any (CaseIterable & RawRepresentable).Type { return try choice(choices, type, place) }
    if types.contains(where: { $0 == type }) { throw unknown(type, place, ", which contains itself") }
    // Their own coding is not that of `JSONDecoder`: a date is a number of seconds, data a list of numbers.
    if type == Date.self || type == Data.self { throw unknown(type, place) }
    let recorder = Recorder(place, types + [type])
    let value: Value
    do {
      value = try Value(from: recorder)
    } catch let error as StreamFuseError {
      throw error
    } catch {
      throw unknown(type, place)
    }
    if recorder.isList, let items = recorder.items { return (.array(of: items), value) }
    if let single = recorder.single { return (single, value) }
    guard !recorder.isList, !recorder.properties.isEmpty else { throw unknown(type, place) }
    return (.object(recorder.properties, optional: recorder.optional), value)
  }

  /// The types that JSON has.
  private static func known<Value>(_ type: Value.Type) -> (schema: JSONSchema, value: Value)? {
    if let number = type as? any FixedWidthInteger.Type, let zero = number.init(0) as? Value {
      return (integer(number), zero)
    }
    let all: [(JSONSchema, Any)] = [(.string(), ""), (.boolean, false), (.number, 0.0), (.number, Float(0))]
    for case (let schema, let value as Value) in all where Swift.type(of: value) == type { return (schema, value) }
    return nil
  }

  /// Whole numbers that fit the type.
  private static func integer<Number: FixedWidthInteger>(_ type: Number.Type) -> JSONSchema {
    let exact = (1 << 53) - 1
    let least = Int(exactly: Number.min).map { max($0, -exact) } ?? -exact
    let most = Int(exactly: Number.max).map { min($0, exact) } ?? exact
    return JSONSchema(#"{"type":"integer","minimum":\#(least),"maximum":\#(most)}"#)
  }

  /// An enumeration of texts.
  private static func choice<Choices: CaseIterable & RawRepresentable, Value>(
    _ choices: Choices.Type, _ type: Value.Type, _ place: String
  ) throws -> (schema: JSONSchema, value: Value) {
    let names = choices.allCases.compactMap { $0.rawValue as? String }
    guard names.count == choices.allCases.count, let first = choices.allCases.first as? Value else {
      throw unknown(type, place)
    }
    return (.string(oneOf: names), first)
  }

  static func unknown(_ type: Any.Type, _ place: String, _ reason: String = "") -> StreamFuseError {
    StreamFuseError(
      .badGrammar, "\(place): no schema can be derived from \(type)\(reason); give one, for example by JSONSchema.object")
  }

  func container<Key>(keyedBy: Key.Type) -> KeyedDecodingContainer<Key> { KeyedDecodingContainer(Properties(self)) }

  func unkeyedContainer() -> any UnkeyedDecodingContainer {
    isList = true
    return Items(self)
  }

  func singleValueContainer() -> any SingleValueDecodingContainer { Single(self) }
}

/// The properties of an object.
private struct Properties<Key: CodingKey>: KeyedDecodingContainerProtocol {
  let recorder: Recorder
  let codingPath: [any CodingKey] = []
  let allKeys: [Key] = []

  init(_ recorder: Recorder) { self.recorder = recorder }

  func contains(_: Key) -> Bool { true }
  func decodeNil(forKey: Key) -> Bool { false }

  func decode<Value: Decodable>(_ type: Value.Type, forKey key: Key) throws -> Value {
    let found = try Recorder.schema(of: type, at: "\(recorder.place).\(key.stringValue)", inside: recorder.types)
    recorder.properties.append((key.stringValue, found.schema))
    return found.value
  }

  func decodeIfPresent<Value: Decodable>(_ type: Value.Type, forKey key: Key) throws -> Value? {
    recorder.optional.insert(key.stringValue)
    return try decode(type, forKey: key)
  }

  func nestedContainer<Nested>(keyedBy: Nested.Type, forKey key: Key) throws -> KeyedDecodingContainer<Nested> {
    throw Recorder.unknown(Nested.self, "\(recorder.place).\(key.stringValue)")
  }
  func nestedUnkeyedContainer(forKey key: Key) throws -> any UnkeyedDecodingContainer {
    throw Recorder.unknown([Any].self, "\(recorder.place).\(key.stringValue)")
  }
  func superDecoder() throws -> any Decoder { throw Recorder.unknown(AnyObject.self, recorder.place) }
  func superDecoder(forKey: Key) throws -> any Decoder { try superDecoder() }

  // The compiler's own `init(from:)` calls these for optional properties of simple types.
  func decodeIfPresent(_ type: Bool.Type, forKey key: Key) throws -> Bool? { try optional(type, key) }
  func decodeIfPresent(_ type: String.Type, forKey key: Key) throws -> String? { try optional(type, key) }
  func decodeIfPresent(_ type: Double.Type, forKey key: Key) throws -> Double? { try optional(type, key) }
  func decodeIfPresent(_ type: Float.Type, forKey key: Key) throws -> Float? { try optional(type, key) }
  func decodeIfPresent(_ type: Int.Type, forKey key: Key) throws -> Int? { try optional(type, key) }
  func decodeIfPresent(_ type: Int8.Type, forKey key: Key) throws -> Int8? { try optional(type, key) }
  func decodeIfPresent(_ type: Int16.Type, forKey key: Key) throws -> Int16? { try optional(type, key) }
  func decodeIfPresent(_ type: Int32.Type, forKey key: Key) throws -> Int32? { try optional(type, key) }
  func decodeIfPresent(_ type: Int64.Type, forKey key: Key) throws -> Int64? { try optional(type, key) }
  func decodeIfPresent(_ type: UInt.Type, forKey key: Key) throws -> UInt? { try optional(type, key) }
  func decodeIfPresent(_ type: UInt8.Type, forKey key: Key) throws -> UInt8? { try optional(type, key) }
  func decodeIfPresent(_ type: UInt16.Type, forKey key: Key) throws -> UInt16? { try optional(type, key) }
  func decodeIfPresent(_ type: UInt32.Type, forKey key: Key) throws -> UInt32? { try optional(type, key) }
  func decodeIfPresent(_ type: UInt64.Type, forKey key: Key) throws -> UInt64? { try optional(type, key) }

  private func optional<Value: Decodable>(_ type: Value.Type, _ key: Key) throws -> Value? {
    recorder.optional.insert(key.stringValue)
    return try decode(type, forKey: key)
  }
}

/// The items of a list: one.
private struct Items: UnkeyedDecodingContainer {
  let recorder: Recorder
  let codingPath: [any CodingKey] = []
  let count: Int? = 1
  var currentIndex = 0

  init(_ recorder: Recorder) { self.recorder = recorder }

  var isAtEnd: Bool { currentIndex > 0 }
  mutating func decodeNil() -> Bool { false }

  mutating func decode<Value: Decodable>(_ type: Value.Type) throws -> Value {
    if isAtEnd { throw Recorder.unknown(type, recorder.place, ", in a list of a fixed length") }
    let found = try Recorder.schema(of: type, at: "\(recorder.place)[]", inside: recorder.types)
    recorder.items = found.schema
    currentIndex = 1
    return found.value
  }

  mutating func nestedContainer<Nested>(keyedBy: Nested.Type) throws -> KeyedDecodingContainer<Nested> {
    throw Recorder.unknown(Nested.self, recorder.place)
  }
  mutating func nestedUnkeyedContainer() throws -> any UnkeyedDecodingContainer {
    throw Recorder.unknown([Any].self, recorder.place)
  }
  mutating func superDecoder() throws -> any Decoder { throw Recorder.unknown(AnyObject.self, recorder.place) }
}

/// A type that is one value of another type.
private struct Single: SingleValueDecodingContainer {
  let recorder: Recorder
  let codingPath: [any CodingKey] = []

  init(_ recorder: Recorder) { self.recorder = recorder }

  func decodeNil() -> Bool { false }

  func decode<Value: Decodable>(_ type: Value.Type) throws -> Value {
    let found = try Recorder.schema(of: type, at: recorder.place, inside: recorder.types)
    recorder.single = found.schema
    return found.value
  }
}
