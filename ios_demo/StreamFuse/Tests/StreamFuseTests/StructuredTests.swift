// Schemas of types, tools of closures, and answers of the real model that are objects and calls.
import Arithmetic
import Foundation
import Synchronization
import XCTest

@testable import StreamFuse
@testable import StreamFuseCore

private enum City: String, Codable, CaseIterable { case paris = "Paris", rome = "Rome" }

private struct Person: Codable, Equatable {
  struct Pet: Codable, Equatable { let name: String }
  let name: String
  let age: Int
  let city: City
  let pets: [Pet]
  let height: Double?
  let home: City?
}

final class StructuredTests: XCTestCase {
  func testATypeGivesItsSchema() throws {
    XCTAssertEqual(
      try JSONSchema(for: Person.self).text,
      #"{"type":"object","properties":{"name":{"type":"string"},"age":{"type":"integer","#
        + #""minimum":-9007199254740991,"maximum":9007199254740991},"city":{"enum":["Paris","Rome"]},"#
        + #""pets":{"type":"array","items":{"type":"object","#
        + #""properties":{"name":{"type":"string"}},"required":["name"],"additionalProperties":false}},"#
        + #""height":{"type":"number"},"home":{"enum":["Paris","Rome"]}},"#
        + #""required":["name","age","city","pets"],"additionalProperties":false}"#)
    XCTAssertEqual(try JSONSchema(for: [Bool].self), .array(of: .boolean))
  }

  func testWholeNumbersFitTheirType() throws {
    struct Numbers: Decodable {
      let tiny: Int8, small: Int16, medium: Int32, long: Int64, whole: Int?
      let byte: UInt8, word: UInt16, half: UInt32, wide: UInt64, count: UInt
    }
    let ranges = [
      ("tiny", "-128", "127"), ("small", "-32768", "32767"), ("medium", "-2147483648", "2147483647"),
      ("long", "-9007199254740991", "9007199254740991"), ("whole", "-9007199254740991", "9007199254740991"),
      ("byte", "0", "255"), ("word", "0", "65535"), ("half", "0", "4294967295"), ("wide", "0", "9007199254740991"),
      ("count", "0", "9007199254740991"),
    ]
    XCTAssertEqual(
      try JSONSchema(for: Numbers.self),
      .object(
        ranges.map { ($0, JSONSchema(#"{"type":"integer","minimum":\#($1),"maximum":\#($2)}"#)) }, optional: ["whole"]))
  }

  func testANumberThatDoesNotFitItsTypeIsNotWritten() async throws {
    struct Year: Decodable { let year: UInt8 }
    let model = try await StreamFuse.load(from: made("build/demo")) { $0.costFolder = nil }
    let question = "Ada Lovelace was born in 1815. Give the year as JSON."
    let unbounded = try await model.chat().respond(to: question) { $0.schema = .object(["year": .integer]) }
    XCTAssertThrowsError(try unbounded.parsed(as: Year.self), "the test needs a larger number: \(unbounded.text)")
    _ = try await model.chat().respond(to: question, as: Year.self)
    // The answers of a model whose tokens are digits and other letters.
    let digits = try await lettersModel().chat()
    for seed in 0..<20 {
      _ = try await digits.respond(to: "2", as: UInt8.self) { $0.temperature = 2; $0.seed = UInt64(seed) }
    }
  }

  /// The schemas that cannot be derived, and how the message begins.
  private func refuse(_ cases: [(String, () throws -> JSONSchema)], line: UInt = #line) {
    for (message, derive) in cases {
      XCTAssertThrowsError(try derive(), line: line) {
        let error = $0 as? StreamFuseError
        XCTAssertEqual(error?.code, .badGrammar, line: line)
        XCTAssert(error?.message.hasPrefix(message) ?? false, "\($0)", line: line)
      }
    }
  }

  func testATypeThatIsNotCodedAsJSONCodesItHasNoSchema() {
    struct Dated: Decodable { let notes: [String: Int] }
    struct Event: Decodable { let day: Date }
    struct Picture: Decodable { let bytes: [Data]? }
    struct Span: Decodable { let range: Range<Int> }
    refuse([
      ("Dated.notes: no schema can be derived", { try JSONSchema(for: Dated.self) }),
      ("Event.day: no schema can be derived", { try JSONSchema(for: Event.self) }),
      ("Picture.bytes[]: no schema can be derived", { try JSONSchema(for: Picture.self) }),
      ("Span.range: no schema can be derived", { try JSONSchema(for: Span.self) }),
    ])
  }

  func testATypeThatContainsItselfHasNoSchema() throws {
    struct Node: Decodable {
      let name: String
      let children: [Node]
    }
    final class Link: Decodable { let next: Link? }
    struct Twice: Decodable { let first: City, second: [City], third: [City]? }
    let reason = ", which contains itself; give one"
    refuse([
      ("Node.children[]: no schema can be derived from Node\(reason)", { try JSONSchema(for: Node.self) }),
      ("Link.next: no schema can be derived from Link\(reason)", { try JSONSchema(for: Link.self) }),
    ])
    XCTAssertNoThrow(try JSONSchema(for: Twice.self), "side by side")
  }

  func testTextsInSchemasAreQuoted() throws {
    let schema = JSONSchema.object(["a \"b\"": .string(pattern: "\\d\n")], optional: ["a \"b\""])
    let read = try JSONSerialization.jsonObject(with: Data(schema.text.utf8)) as? [String: Any]
    let properties = read?["properties"] as? [String: [String: String]]
    XCTAssertEqual(properties?["a \"b\""]?["pattern"], "\\d\n")
    XCTAssertEqual(read?["required"] as? [String], [])
  }

  func testAnAnswerIsAnObjectWithAndWithoutDrafts() async throws {
    struct Weather: Codable, Equatable {
      let city: City
      let rains: Bool
    }
    let model = try await StreamFuse.load(from: made("build/demo")) { $0.costFolder = nil }
    let question = "It rains in Rome. Give the city and whether it rains as JSON."
    let drafted = try await model.chat().respond(to: question, as: Weather.self)
    let plain = try await model.chat().respond(to: question, as: Weather.self) { $0.enableSpeculativeDecoding = false }
    XCTAssertEqual(drafted, plain)
    XCTAssertEqual(drafted.city, .rome)

    let cut = try await model.chat().respond(to: question) {
      $0.schema = try? JSONSchema(for: Weather.self)
      $0.maxNewTokens = 3
    }
    XCTAssertEqual(cut.statistics.finishReason, "incomplete")
    XCTAssertThrowsError(try cut.parsed(as: Weather.self)) {
      XCTAssertEqual(($0 as? StreamFuseError)?.code, .notParsed)
      XCTAssert("\($0)".contains("raise maxNewTokens"))
    }
  }

  func testARegexAndAGrammarRestrictAnAnswer() async throws {
    let model = try await StreamFuse.load(from: made("build/demo")) { $0.costFolder = nil }
    let digits = try await model.chat().respond(to: "How old are you?") { $0.regex = "[1-9][0-9] years" }
    XCTAssertNotNil(digits.text.wholeMatch(of: /[1-9][0-9] years/))
    let word = try await model.chat().respond(to: "Is the sky blue?") { $0.grammar = #"start: "yes" | "no""# }
    XCTAssert(["yes", "no"].contains(word.text))
    do {
      _ = try await model.chat().respond(to: "x") { $0.schema = JSONSchema(#"{"not": {}, "uniqueItems": true}"#) }
      XCTFail("an unsupported keyword is refused")
    } catch let error as StreamFuseError {
      XCTAssertEqual(error.code, .badGrammar)
    }
  }

  func testATemplateVariableThatIsNotJSONIsRefused() async throws {
    let made = Mutex(0)
    let engine = WatchedEngine(made: ArithmeticEngine(spec: .arithmetic())) { made.withLock { $0 += 1 } }
    let chat = try await lettersModel(engine: engine).chat(templateVariables: ["year": .number(.infinity)])
    do {
      _ = try await chat.respond(to: "314")
      XCTFail("infinity is not JSON")
    } catch let error as StreamFuseError {
      XCTAssertEqual(error.code, .badArgument)
    }
    XCTAssertEqual(made.withLock { $0 }, 0, "an engine that nothing would release")
  }

  func testATypedToolGetsItsArgumentsAndTellsItsErrors() async throws {
    struct Place: Codable { let city: City }
    struct Unknown: LocalizedError { let errorDescription: String? = "no such city" }
    let weather = try Tool("weather", "The weather of a city.") { (place: Place) in
      if place.city == .paris { throw Unknown() }
      return "sunny in \(place.city.rawValue)"
    }
    XCTAssertEqual(
      weather.json,
      #"{"type":"function","function":{"name":"weather","description":"The weather of a city.","parameters":"#
        + #"{"type":"object","properties":{"city":{"enum":["Paris","Rome"]}},"required":["city"],"#
        + #""additionalProperties":false}}}"#)
    let rome = try await result(of: weather, for: "Rome")
    XCTAssertEqual(rome, "sunny in Rome")
    let paris = try await result(of: weather, for: "Paris")
    XCTAssertEqual(paris, "error: no such city")
  }

  private func result(of tool: Tool, for city: String) async throws -> String {
    let json = #"{"id": "1", "name": "weather", "arguments": {"city": "\#(city)"}}"#
    return try await tool.result(of: JSONDecoder().decode(ToolCall.self, from: Data(json.utf8))).content
  }

  func testARequiredCallIsRunAndItsResultIsAnswered() async throws {
    struct Place: Codable { let city: City }
    let cities = Mutex<[City]>([])
    let weather = try Tool("weather", "The weather of a city today.") { (place: Place) in
      cities.withLock { $0.append(place.city) }
      return "sunny"
    }
    let model = try await StreamFuse.load(from: made("build/demo")) { $0.costFolder = nil }
    let chat = model.chat(tools: [weather]) { $0.maxNewTokens = 60 }
    let called = try await chat.stream(to: "How is the weather in Rome?") { $0.toolChoice = .required }.response()
    XCTAssertEqual(called.toolCalls.map(\.name), ["weather"])
    XCTAssertEqual(called.text, "")
    let plain = try await model.chat(tools: [weather]) { $0.maxNewTokens = 60 }
      .stream(to: "How is the weather in Rome?") {
        $0.toolChoice = .required
        $0.enableSpeculativeDecoding = false
      }.response()
    XCTAssertEqual(called.tokens, plain.tokens)

    let looped = model.chat(tools: [weather]) { $0.maxNewTokens = 60 }
    let answer = try await looped.respond(to: "How is the weather in Rome?", maxToolRounds: 1) { $0.toolChoice = .required }
    XCTAssertEqual(cities.withLock { $0 }.count, 1)
    XCTAssertGreaterThan(answer.tokens.count, 0)
    let roles = try await looped.messages.map(\.role)
    XCTAssertEqual(roles, [.user, .assistant, .tool, .assistant])
  }

  func testAChatThatBeginsWithTheMessagesOfAnotherReadsTheArgumentsInTheirOrder() async throws {
    enum Unit: String, Codable, CaseIterable { case celsius, kelvin }
    struct Query: Codable { let unit: Unit, city: City }  // not the order of the alphabet
    let weather = try Tool("weather", "The weather of a city today.") { (query: Query) in "sunny in \(query.city)" }
    let model = try await StreamFuse.load(from: made("build/demo")) { $0.costFolder = nil }
    let chat = model.chat(tools: [weather]) { $0.maxNewTokens = 60 }
    try await chat.respond(to: "How is the weather in Rome?", maxToolRounds: 1) { $0.toolChoice = .required }
    let history = try await chat.messages
    let call = try XCTUnwrap(history[1].toolCalls?.first)
    let arguments = try call.argumentsJSON
    XCTAssert(arguments.hasPrefix(#"{"unit":"#), arguments)

    func prompt(with call: ToolCall) async throws -> [Int] {
      var messages = history
      messages[1] = Message(role: .assistant, content: "", toolCalls: [call])
      let chat = model.chat(history: messages, tools: [weather]) { $0.maxNewTokens = 1 }
      let count = try await chat.respond(to: "Thanks.").statistics.promptTokens
      return try await Array(chat.session.tokens.prefix(count))
    }
    let kept = try await prompt(with: call)
    let same = try await prompt(with: ToolCall(id: call.id, name: call.name, argumentsText: arguments))
    XCTAssertEqual(kept, same)
    let sorted = try await prompt(with: ToolCall(id: call.id, name: call.name, arguments: call.arguments))
    XCTAssertNotEqual(kept, sorted)
  }

  func testArgumentsKeepTheOrderOfTheirKeys() throws {
    // As the library writes messages: the content and the names of fields are no arguments.
    let json = #"""
      [{"role":"user","content":"\"arguments\":{\\"},{"role":"assistant","content":"arguments","tool_calls":[
      {"id":"a","type":"function","function":{"name":"now",
      "arguments":{"zone":{"b":"}\"","arguments":{"d":1,"c":[{}]}},"at":1.0}}},
      {"id":"b","type":"function","function":{"name":"now","arguments":{}}}]}]
      """#.replacing("\n", with: "")
    let messages = try JSONDecoder().decode([Message].self, from: withArgumentsAsText(json))
    XCTAssertEqual(messages, try JSONDecoder().decode([Message].self, from: Data(json.utf8)))
    XCTAssertEqual("[\(try messages.map { try $0.json }.joined(separator: ","))]", json)
    // Arguments that are text already.
    let text = #"{"function":{"name":"now","arguments":"{\"zone\": 2, \"at\": 1}"}}"#
    let call = try JSONDecoder().decode(ToolCall.self, from: withArgumentsAsText(text))
    XCTAssertEqual(try call.argumentsJSON, #"{"zone": 2, "at": 1}"#)
    // A call that the app makes.
    let made = ToolCall(id: "", name: "now", arguments: .object(["zone": .integer(2), "at": .integer(1)]))
    XCTAssertEqual(made, call)
    XCTAssertEqual(try made.argumentsJSON, #"{"at":1,"zone":2}"#)
  }

  func testMessagesKeepCallsAndResults() throws {
    let json = """
      [{"role": "assistant", "content": "", "tool_calls": [{"id": "a", "type": "function",
        "function": {"name": "now", "arguments": {"zone": 2}}}]},
       {"role": "tool", "content": "12:00", "name": "now", "tool_call_id": "a"}]
      """
    let messages = try JSONDecoder().decode([Message].self, from: Data(json.utf8))
    XCTAssertEqual(messages[0].toolCalls?.first?.arguments, .object(["zone": .integer(2)]))
    XCTAssertEqual(messages[1].toolCallID, "a")
    let again = try JSONDecoder().decode([Message].self, from: JSONEncoder().encode(messages))
    XCTAssertEqual(again, messages)
  }

  func testMessagesOfOtherLanguagesHistoriesAreRead() throws {
    let json = #"""
      [{"role": "developer"},
       {"role": "assistant", "content": null, "reasoning_content": "Let me see.", "tool_calls": [
        {"type": "function", "function": {"name": "now", "arguments": {"zone": 2}}},
        {"id": "b", "type": "function", "function": {"name": "now", "arguments": "{\"zone\": 2}"}}]},
       {"role": "assistant", "content": "Noon.", "tool_calls": null}]
      """#
    let messages = try JSONDecoder().decode([Message].self, from: Data(json.utf8))
    XCTAssertEqual(messages.map(\.role), [.developer, .assistant, .assistant])
    XCTAssertEqual(messages.map(\.content), ["", "", "Noon."])
    XCTAssertEqual(messages[1].toolCalls?.map(\.id), ["", "b"])
    XCTAssertEqual(messages[1].toolCalls?.map(\.arguments), [.object(["zone": .integer(2)]), .object(["zone": .integer(2)])])
    XCTAssertNil(messages[2].toolCalls)
    // As the library lists the calls of the last turn of such a history.
    let call = #"{"id": null, "name": "now", "arguments": {}}"#
    XCTAssertEqual(
      try JSONDecoder().decode(ToolCall.self, from: Data(call.utf8)), ToolCall(id: "", name: "now", arguments: .object([:])))
  }

  func testArgumentsThatAreNoObjectAreRefusedWithTheirPlace() {
    for arguments in ["null", "[1]", #""null""#, #""[1]""#, #""zone 2""#, #""""#] {
      let json = #"[{"role": "assistant", "tool_calls": [{"function": {"name": "now", "arguments": \#(arguments)}}]}]"#
      XCTAssertThrowsError(try JSONDecoder().decode([Message].self, from: Data(json.utf8)), arguments) {
        guard case .dataCorrupted(let context) = $0 as? DecodingError else { return XCTFail("\($0)") }
        XCTAssertEqual(context.debugDescription, "the arguments of a tool call must be a JSON object")
        XCTAssertEqual(context.codingPath.map(\.stringValue), ["Index 0", "tool_calls", "Index 0", "function", "arguments"])
      }
    }
  }
}
