// Rounds of tool calls and their results, over answers that a script gives.
import Arithmetic
import Foundation
import Synchronization
import XCTest

@testable import StreamFuseCore

/// Gives answers with these calls, one after the other, then answers without calls.
private final class ScriptedWriter: StatelessWriter {
  struct State {
    var script: [[ToolCall]]
    var requests: [(prompt: Prompt, choice: ToolChoice?)] = []
    var calls: [ToolCall] = []
    var hasPiece = false
  }
  let state: Mutex<State>

  /// Called before an answer ends.
  let beforeEnd: @Sendable () -> Void
  /// Called by `prepare`.
  let beforePrepare: @Sendable () -> Void

  init(
    _ script: [[ToolCall]], beforeEnd: @escaping @Sendable () -> Void = {},
    beforePrepare: @escaping @Sendable () -> Void = {}
  ) {
    state = Mutex(State(script: script))
    self.beforeEnd = beforeEnd
    self.beforePrepare = beforePrepare
  }

  /// The results that were sent, one list per round.
  var results: [[ToolResult]] {
    state.withLock { $0.requests.compactMap { if case .results(let results) = $0.prompt { results } else { nil } } }
  }

  /// The tool choice of each request.
  var choices: [ToolChoice?] { state.withLock { $0.requests.map(\.choice) } }

  func start(_ prompt: Prompt, _ config: GenerationConfig) {
    state.withLock {
      $0.requests.append((prompt, config.toolChoice))
      $0.calls = $0.script.isEmpty ? [] : $0.script.removeFirst()
      $0.hasPiece = true
    }
  }

  func next() -> Piece? {
    if state.withLock({ !$0.hasPiece }) { beforeEnd() }
    return state.withLock {
      guard $0.hasPiece else { return nil }
      $0.hasPiece = false
      return $0.calls.isEmpty ? Piece(text: "Warm.", token: 1) : Piece(text: "{...}", token: 2, channel: .toolCall)
    }
  }

  func prepare() { beforePrepare() }

  func toolCalls() -> [ToolCall] { state.withLock { $0.calls } }

  func statistics() throws -> Statistics { try .scripted() }
}

final class ToolLoopTests: XCTestCase {
  private struct Query: Codable { let city: String }

  private func call(_ id: String, _ name: String = "forecast", _ city: String = "Rome") throws -> ToolCall {
    let json = #"{"id": "\#(id)", "name": "\#(name)", "arguments": {"city": "\#(city)"}}"#
    return try JSONDecoder().decode(ToolCall.self, from: Data(json.utf8))
  }

  private func chat(
    _ writer: ScriptedWriter, _ tools: [Tool], _ configure: (inout GenerationConfig) -> Void = { _ in }
  ) -> Chat {
    let model = Model(
      spec: .arithmetic(), defaults: .coreDefaults, manifest: Data(), backend: nil, loadMs: 0, canChat: true
    ) { _ in writer }
    return model.chat(tools: tools, configure)
  }

  private func forecast() throws -> Tool {
    try Tool("forecast", "The weather.") { (query: Query) in "warm in \(query.city)" }
  }

  func testCallsAreAnsweredUntilAnAnswerHasNone() async throws {
    let writer = ScriptedWriter([[try call("a"), try call("b", "forecast", "Oslo")], [try call("c")]])
    let response = try await chat(writer, [forecast()]).respond(to: "And the weather?") { $0.toolChoice = .required }
    XCTAssertEqual(response.text, "Warm.")
    XCTAssertEqual(response.toolCalls, [])
    XCTAssertEqual(
      writer.results,
      [
        [ToolResult(toolCallID: "a", content: "warm in Rome"), ToolResult(toolCallID: "b", content: "warm in Oslo")],
        [ToolResult(toolCallID: "c", content: "warm in Rome")],
      ])
    XCTAssertEqual(writer.choices, [.required, .auto, .auto])
  }

  func testAChoiceOfTheChatIsForTheFirstAnswerToo() async throws {
    let writer = ScriptedWriter([[try call("a")]])
    _ = try await chat(writer, [forecast()]) { $0.toolChoice = .required }.respond(to: "And the weather?")
    XCTAssertEqual(writer.choices, [.required, .auto])
  }

  func testFailuresUnknownNamesAndWrongArgumentsAreResults() async throws {
    let slow = Tool("slow", "", parameters: JSONSchema("{}")) { _ in throw CancellationError() }
    let wrong = #"{"id": "b", "name": "forecast", "arguments": {"town": "Rome"}}"#
    let writer = ScriptedWriter([
      [try call("a", "missing"), try JSONDecoder().decode(ToolCall.self, from: Data(wrong.utf8)), try call("c", "slow")]
    ])
    let response = try await chat(writer, [forecast(), slow]).respond(to: "And the weather?")
    XCTAssertEqual(response.text, "Warm.")
    let results = writer.results[0]
    XCTAssertEqual(results.map(\.toolCallID), ["a", "b", "c"])
    XCTAssertEqual(results[0].content, "error: there is no tool missing; the tools are forecast, slow")
    XCTAssert(results[1].content.contains("city"), results[1].content)
    XCTAssert(results.allSatisfy { $0.content.hasPrefix("error: ") })
  }

  private enum Failure: Error {
    case noSuchCity(String)
  }

  private struct Told: LocalizedError {
    var errorDescription: String? { "there is no such city" }
  }

  func testTheModelReadsWhatAToolThrows() async throws {
    let failures: [(any Error, String)] = [
      (Failure.noSuchCity("Rome"), "error: noSuchCity(\"Rome\")"), (Told(), "error: there is no such city"),
    ]
    for (failure, content) in failures {
      let writer = ScriptedWriter([[try call("a")]])
      let tool = Tool("forecast", "", parameters: JSONSchema("{}")) { _ in throw failure }
      _ = try await chat(writer, [tool]).respond(to: "And the weather?")
      XCTAssertEqual(writer.results, [[ToolResult(toolCallID: "a", content: content)]])
    }
  }

  func testAnAnswerThatTrimOrSaveCutsMakesNoCalls() async throws {
    let cuts: [@Sendable (Chat) async throws -> Void] = [
      { try await $0.trim() }, { try await $0.save(to: URL(filePath: "/dev/null")) },
    ]
    for cut in cuts {
      let (reached, reachedNow) = AsyncStream.makeStream(of: Void.self)
      let gate = DispatchSemaphore(value: 0)
      let writer = ScriptedWriter([[try call("a")]]) {
        reachedNow.yield()
        _ = gate.wait(timeout: .now() + 10)
      }
      let made = Locked(0)
      let tool = Tool("forecast", "", parameters: JSONSchema("{}")) { _ in
        made.withLock { $0 += 1 }
        return "cold"
      }
      let chat = chat(writer, [tool])
      let asking = Task { try await chat.respond(to: "And the weather?") }
      for await _ in reached { break }
      let cutting = Task { try await cut(chat) }
      try await Task.sleep(for: .milliseconds(200))  // it waits for the pass
      gate.signal()
      gate.signal()
      _ = try await asking.value
      try await cutting.value
      XCTAssertEqual(made.withLock { $0 }, 0)
    }
  }

  func testAfterAStopTheCallsThatAreLeftAreNotMade() async throws {
    let writer = ScriptedWriter([[try call("a"), try call("b", "forecast", "Oslo")]])
    let made = Locked(0), asked = Locked<Chat?>(nil)
    let tool = Tool("forecast", "", parameters: JSONSchema("{}")) { _ in
      made.withLock { $0 += 1 }
      asked.withLock { $0 }?.stop()
      return "cold"
    }
    let chat = chat(writer, [tool])
    asked.withLock { $0 = chat }
    let response = try await chat.respond(to: "And the weather?")
    asked.withLock { $0 = nil }
    XCTAssertEqual(made.withLock { $0 }, 1)
    XCTAssertEqual(response.toolCalls.map(\.id), ["a", "b"])
    XCTAssertEqual(writer.results.count, 0)
  }

  func testThereAreAtMostFourRoundsByDefault() async throws {
    let script = try (0..<6).map { [try call("\($0)")] }
    let writer = ScriptedWriter(script)
    let response = try await chat(writer, [forecast()]).respond(to: "And the weather?")
    XCTAssertEqual(writer.results.count, 4)
    XCTAssertEqual(response.toolCalls.map(\.id), ["4"])
    let manual = ScriptedWriter(script)
    let first = try await chat(manual, [forecast()]).respond(to: "And the weather?", maxToolRounds: 0)
    XCTAssertEqual(manual.results.count, 0)
    XCTAssertEqual(first.toolCalls.map(\.id), ["0"])
  }

  func testAStopAnotherRequestAndAResetWhileAToolRunsEndTheRounds() async throws {
    let ends: [@Sendable (Chat) async throws -> Void] = [
      { $0.stop() }, { _ = try await $0.respond(to: "Something else") }, { try await $0.reset() },
    ]
    for end in ends {
      let writer = ScriptedWriter([[try call("a")]])
      let calls = try await respond(writer, whileAToolRuns: end).toolCalls.map(\.id)
      XCTAssertEqual(calls, ["a"])
      XCTAssertEqual(writer.results.count, 0)
    }
  }

  func testARequestThatWaitsWhileAToolRunsIsAnsweredAndTheResultIsNotSent() async throws {
    let gate = DispatchSemaphore(value: 0)
    let writer = ScriptedWriter([[try call("a")]], beforePrepare: { _ = gate.wait(timeout: .now() + 10) })
    let asked = Locked<Task<Response, any Error>?>(nil)
    let response = try await respond(writer, whileAToolRuns: { chat in
      Task { try await chat.prepare() }
      try await Task.sleep(for: .milliseconds(100))  // it holds the session
      asked.withLock { $0 = Task { try await chat.respond(to: "Something else") } }
      try await Task.sleep(for: .milliseconds(100))  // it waits for the session
    })
    gate.signal()
    XCTAssertEqual(response.toolCalls.map(\.id), ["a"])
    XCTAssertEqual(writer.results.count, 0)
    let other = try await asked.withLock { $0 }?.value
    XCTAssertEqual(other?.text, "Warm.")
  }

  func testSaveTrimAndPrepareDuringAToolCallKeepTheToolLoopRunning() async throws {
    let keeping: [@Sendable (Chat) async throws -> Void] = [
      { try await $0.save(to: URL(filePath: "/dev/null")) }, { try await $0.trim() }, { try await $0.prepare() },
      { _ = try await $0.messages },
    ]
    for keep in keeping {
      let writer = ScriptedWriter([[try call("a")]])
      let response = try await respond(writer, whileAToolRuns: keep)
      XCTAssertEqual(response.text, "Warm.")
      XCTAssertEqual(response.toolCalls, [])
      XCTAssertEqual(writer.results, [[ToolResult(toolCallID: "a", content: "cold")]])
    }
  }

  func testTrimBetweenAToolResultAndItsRequestKeepsTheToolLoopRunning() async throws {
    let gate = DispatchSemaphore(value: 0)
    let writer = ScriptedWriter([[try call("a")]], beforePrepare: { _ = gate.wait(timeout: .now() + 10) })
    let response = try await respond(writer, whileAToolRuns: { chat in
      Task { try await chat.prepare() }
      try await Task.sleep(for: .milliseconds(100))  // it holds the session
      Task {
        try await Task.sleep(for: .milliseconds(100))  // the request with the result waits for the session
        async let trimmed: Void = chat.trim()
        try await Task.sleep(for: .milliseconds(100))
        gate.signal()
        try await trimmed
      }
    })
    XCTAssertEqual(response.text, "Warm.")
    XCTAssertEqual(writer.results.count, 1)
  }

  /// The response to a question whose tool runs while `body` does.
  private func respond(
    _ writer: ScriptedWriter, whileAToolRuns body: @Sendable (Chat) async throws -> Void
  ) async throws -> Response {
    let (called, calledNow) = AsyncStream.makeStream(of: Void.self)
    let (released, release) = AsyncStream.makeStream(of: Void.self)
    let held = Tool("forecast", "", parameters: JSONSchema("{}")) { _ in
      calledNow.finish()
      for await _ in released {}
      return "cold"
    }
    let chat = chat(writer, [held])
    let response = Task {
      defer { calledNow.finish() }  // also where it fails before it calls the tool
      return try await chat.respond(to: "And the weather?")
    }
    for await _ in called {}
    try await body(chat)
    release.finish()
    return try await response.value
  }

  func testAChoiceHasTheWordOfEveryLanguage() throws {
    let json = #"{"tool_choice":"none"}"#
    var config = try JSONDecoder().decode(GenerationConfig.self, from: Data(json.utf8))
    XCTAssertEqual(config.toolChoice, .never)
    XCTAssertEqual(String(decoding: try JSONEncoder().encode(config), as: UTF8.self), json)
    config.toolChoice = .tool("forecast")
    XCTAssertEqual(String(decoding: try JSONEncoder().encode(config), as: UTF8.self), #"{"tool_choice":"forecast"}"#)
  }
}
