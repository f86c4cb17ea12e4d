// What the executor requests from a chat for Apple's session, and what it sends back, over scripted answers.
import Foundation
import FoundationModels
import StreamFuseFoundationModels
import Synchronization
import XCTest

@testable import StreamFuseCore

private typealias Channel = LanguageModelExecutorGenerationChannel

private func text(_ content: String) -> [Transcript.Segment] { [.text(.init(content: content))] }
private func prompt(_ content: String) -> Transcript.Entry { .prompt(.init(segments: text(content))) }
private func response(_ content: String) -> Transcript.Entry {
  .response(.init(assetIDs: [], segments: text(content)))
}

private func weather() throws -> Transcript.ToolDefinition {
  let schema = #"{"type":"object","properties":{"days":{"type":"integer"},"city":{"type":"string"}},"#
    + #""required":["city","days"],"x-order":["city","days"]}"#
  return .init(name: "weather", description: "The weather.", parameters: try GenerationSchema(json: schema))
}

private func call(_ id: String) -> ToolCall {
  ToolCall(id: id, name: "weather", arguments: .object(["city": .string("Rome"), "days": .integer(2)]))
}

/// Answers one request; the events that were sent.
@discardableResult
private func ask(
  _ model: StreamFuseLanguageModel, _ entries: [Transcript.Entry], tools: [Transcript.ToolDefinition] = [],
  schema: GenerationSchema? = nil, _ options: GenerationOptions = GenerationOptions(),
  _ context: ContextOptions = ContextOptions(), channel: LanguageModelExecutorGenerationChannel = .init()
) async throws -> [any LanguageModelExecutorGenerationChannel.Event] {
  // As the framework does, which only knows the protocols.
  func respond<M: LanguageModel>(_ model: M) async throws {
    let request = LanguageModelExecutorGenerationRequest(
      id: UUID(), transcript: Transcript(entries: entries), enabledTools: tools, schema: schema,
      generationOptions: options, contextOptions: context)
    try await M.Executor(configuration: model.executorConfiguration).respond(
      to: request, model: model, streamingInto: channel)
  }
  try await respond(model)
  return channel.events
}

final class LanguageModelTests: XCTestCase {
  func testATranscriptIsAChatAndItsAnswerIsStreamed() async throws {
    let script = Script([ScriptedAnswer("Be", "", "cause.")])
    let model = StreamFuseLanguageModel(script.model())
    let sent = try await ask(
      model,
      [
        .instructions(.init(segments: text("Be") + text("brief."), toolDefinitions: [])), prompt("Hello"),
        .reasoning(.init(segments: text("A greeting."))), response("Hi"), prompt("Why?"),
      ])
    XCTAssertEqual(script.opened.count, 1)
    XCTAssertEqual(script.opened[0].instructions, "Be\nbrief.")
    XCTAssertEqual(
      script.opened[0].history, [Message(role: .user, content: "Hello"), Message(role: .assistant, content: "Hi")])
    XCTAssertEqual(script.requests.map(\.prompt), [.turn("Why?")])
    let events = sent.compactMap { ($0 as? Channel.Response)?.action }
    let usage = Channel.Usage(
      input: .init(totalTokenCount: 20, cachedTokenCount: 15), output: .init(totalTokenCount: 3, reasoningTokenCount: 0))
    XCTAssertEqual(events, [.text("Be", 1), .text("cause.", 2), .usage(usage)])
    XCTAssertEqual(sent.count, 3)
  }

  func testASessionThatGoesOnUsesTheSameChatAndAnotherOneDoesNot() async throws {
    let script = Script([ScriptedAnswer("One."), ScriptedAnswer("Two."), ScriptedAnswer("Three."), ScriptedAnswer("Four.")])
    let model = StreamFuseLanguageModel(script.model())
    let first = [prompt("1?"), response("One."), prompt("2?")]
    try await ask(model, [first[0]])
    try await ask(model, first)
    try await ask(model, first + [response("Two."), prompt("3?")])
    XCTAssertEqual(script.requests.map(\.chat), [0, 0, 0])
    try await ask(model, [prompt("1?"), response("Another."), prompt("2?")])
    XCTAssertEqual(script.requests.map(\.chat), [0, 0, 0, 1])
    XCTAssertEqual(script.opened[1].history.map(\.content), ["1?", "Another."])
  }

  func testAsManyChatsAreKeptAsTheAppSays() async throws {
    for (count, chats) in [(0, [0, 1, 2, 3]), (1, [0, 1, 2, 3]), (2, [0, 1, 0, 1])] {
      let script = Script((0..<4).map { ScriptedAnswer("\($0)") })
      let model = StreamFuseLanguageModel(script.model(), keptChats: count)
      try await ask(model, [prompt("a")])
      try await ask(model, [prompt("b")])
      try await ask(model, [prompt("a"), response("0"), prompt("a2")])
      try await ask(model, [prompt("b"), response("1"), prompt("b2")])
      XCTAssertEqual(script.requests.map(\.chat), chats, "\(count)")
    }
  }

  func testToolsAreCalledByTheFrameworkAndTheirOutputsGoBack() async throws {
    var calling = ScriptedAnswer("Let me see.")
    calling.pieces.append(Piece(text: "{...}", token: 2, channel: .toolCall))
    calling.calls = [call("call00001"), call("call00002")]
    let script = Script([calling, ScriptedAnswer("Warm.")])
    let model = StreamFuseLanguageModel(script.model())
    let sent = try await ask(model, [prompt("Rome?")], tools: [weather()], GenerationOptions(toolCallingMode: .required))
    XCTAssertEqual(script.opened[0].tools.map(\.name), ["weather"])
    XCTAssertEqual(
      script.opened[0].tools[0].parameters.text,
      #"{"properties":{"city":{"type":"string"},"days":{"type":"integer"}},"required":["city","days"],"type":"object"}"#)
    XCTAssertEqual(script.requests[0].config.toolChoice, .required)
    let calls = sent.compactMap { ($0 as? Channel.ToolCalls)?.action }
    let arguments = #"{"city":"Rome","days":2}"#
    XCTAssertEqual(
      Array(calls.prefix(2)),
      [
        .toolCall(id: "call00001", name: "weather", action: .appendArguments(arguments, tokenCount: 1)),
        .toolCall(id: "call00002", name: "weather", action: .appendArguments(arguments, tokenCount: 0)),
      ])
    XCTAssertEqual(calls.count, 3, "and the usage")
    XCTAssertEqual(sent.compactMap { ($0 as? Channel.Response)?.action }, [.text("Let me see.", 1)])

    let content = try GeneratedContent(json: arguments)
    let entries = [
      prompt("Rome?"), response("Let me see."),
      .toolCalls(
        .init(["call00001", "call00002"].map { Transcript.ToolCall(id: $0, toolName: "weather", arguments: content) })),
      .toolOutput(.init(id: "call00001", toolName: "weather", segments: text("18"))),
      .toolOutput(
        .init(
          id: "call00002", toolName: "weather",
          segments: [.structure(.init(schemaName: "Degrees", content: try GeneratedContent(json: "{\"c\":19}")))])),
    ]
    let results = { (second: String) in
      Prompt.results([ToolResult(toolCallID: "call00001", content: "18"), ToolResult(toolCallID: "call00002", content: second)])
    }
    try await ask(model, entries, tools: [weather()], GenerationOptions(toolCallingMode: .required))
    XCTAssertEqual(script.requests[1].chat, 0, "the same chat")
    XCTAssertEqual(script.requests[1].prompt, results("{\n  \"c\" : 19\n}"))
    XCTAssertEqual(script.requests[1].config.toolChoice, .auto, "the required call was made")

    let afresh = Script([ScriptedAnswer("Warm.")])
    try await ask(StreamFuseLanguageModel(afresh.model()), entries, tools: [weather()], GenerationOptions(toolCallingMode: .disallowed))
    XCTAssertEqual(
      afresh.opened[0].history,
      [
        Message(role: .user, content: "Rome?"),
        Message(role: .assistant, content: "Let me see.", toolCalls: [call("call00001"), call("call00002")]),
      ])
    XCTAssertEqual(afresh.requests[0].config.toolChoice, .never)
  }

  func testASchemaRestrictsTheAnswerAndIsInThePromptUnlessTheAppDoesNotWantIt() async throws {
    let json = ##"{"title":"City","type":"object","x-order":["name","big"],"properties":{"big":{"type":"boolean"},"##
      + ##""name":{"$ref":"#/$defs/Name"}},"required":["name","big"],"$defs":{"Name":{"type":"string","maxLength":9}}}"##
    let ordered = ##"{"$defs":{"Name":{"maxLength":9,"type":"string"}},"properties":{"name":{"$ref":"#/$defs/Name"},"##
      + ##""big":{"type":"boolean"}},"required":["name","big"],"title":"City","type":"object"}"##
    let schema = try GenerationSchema(json: json)
    let script = Script((0..<5).map { _ in ScriptedAnswer("{}") })
    let model = StreamFuseLanguageModel(script.model())
    try await ask(model, [prompt("Rome")], schema: schema)
    XCTAssertEqual(script.requests[0].config.schema?.text, ordered)
    XCTAssertEqual(script.requests[0].prompt, .turn("Rome\n\nAnswer with JSON that fits this schema: \(ordered)"))
    try await ask(model, [prompt("Rome"), response("{}"), prompt("Oslo")], schema: schema, .init(), .init(includeSchemaInPrompt: false))
    XCTAssertEqual(script.requests[1].prompt, .turn("Oslo"))
    XCTAssertEqual(script.requests[1].chat, 0)
    // The answer fits the schema, or is a call.
    try await ask(model, [prompt("Rome")], tools: [weather()], schema: schema)
    let free = script.requests[2].config
    XCTAssertEqual([free.toolChoice?.rawValue, free.schema?.text], ["auto", ordered])
    try await ask(model, [prompt("Rome")], tools: [weather()], schema: schema, .init(toolCallingMode: .required))
    let forced = script.requests[3].config
    XCTAssertEqual([forced.toolChoice?.rawValue, forced.schema?.text], ["required", nil])
    XCTAssertEqual(script.requests[3].prompt, .turn("Rome"))
  }

  func testAnObjectThatDoesNotEndIsAnError() async throws {
    let schema = try GenerationSchema(json: #"{"type":"object"}"#)
    let model = StreamFuseLanguageModel(Script([ScriptedAnswer("{", finishReason: "incomplete")]).model())
    do {
      try await ask(model, [prompt("Rome")], schema: schema)
      XCTFail("nothing was thrown")
    } catch let error as StreamFuseError {
      XCTAssertEqual(error.code, .notParsed)
      XCTAssert(error.message.contains("maximumResponseTokens"), error.message)
    }
  }

  func testARequiredCallThatDoesNotEndIsAnError() async throws {
    var cut = ScriptedAnswer(finishReason: "incomplete")
    cut.pieces = [Piece(text: "{", token: 1, channel: .toolCall)]
    let model = StreamFuseLanguageModel(Script([cut]).model())
    do {
      try await ask(model, [prompt("Rome?")], tools: [weather()], .init(toolCallingMode: .required))
      XCTFail("nothing was thrown")
    } catch let error as StreamFuseError {
      XCTAssertEqual(error.code, .notParsed)
      XCTAssert(error.message.hasPrefix("the tool call is incomplete"), error.message)
    }
  }

  func testGenerationOptionsAreTheLibrarys() async throws {
    typealias Case = (options: GenerationOptions, temperature: Double, topK: Int, topP: Double, seed: UInt64?)
    let cases: [Case] = [
      (.init(temperature: 0.5), 0.5, 40, 0.9, nil),
      (.init(samplingMode: .greedy, temperature: 0.5), 0, 40, 0.9, nil),
      (.init(samplingMode: .random(top: 7, seed: 3)), 0.6, 7, 1, 3),
      (.init(samplingMode: .random(probabilityThreshold: 0.25, seed: 4), temperature: 1.5), 1.5, 0, 0.25, 4),
      (.init(samplingMode: .random(probabilityThreshold: 0)), 0, 0, 1, nil),
    ]
    let script = Script(cases.map { _ in ScriptedAnswer("a") })
    let model = StreamFuseLanguageModel(
      script.model {
        ($0.temperature, $0.topK, $0.topP, $0.minP) = (0.6, 40, 0.9, 0.1)
      })
    for (number, one) in cases.enumerated() {
      var options = one.options
      options.maximumResponseTokens = 10 + number
      try await ask(model, [prompt("\(number)")], options)
      let config = script.requests[number].config
      XCTAssertEqual(config.temperature, one.temperature, "\(number)")
      XCTAssertEqual(config.topK, one.topK, "\(number)")
      XCTAssertEqual(config.topP, one.topP, "\(number)")
      XCTAssertEqual(config.maxNewTokens, 10 + number)
      if let seed = one.seed { XCTAssertEqual(config.seed, seed) }
    }
    XCTAssertEqual(script.requests[0].config.minP, 0.1)
    XCTAssertEqual(script.requests[2].config.minP, 0)
    XCTAssertNotEqual(script.requests[0].config.seed, script.requests[1].config.seed, "answers vary")

    let greedy = Script([ScriptedAnswer("a"), ScriptedAnswer("b")])
    let fixed = StreamFuseLanguageModel(greedy.model { $0.temperature = 0 }) { $0.seed = 11 }
    try await ask(fixed, [prompt("1")], .init(samplingMode: .random(top: 5)))
    XCTAssertEqual([greedy.requests[0].config.temperature, 1], [1, 1], "at temperature 0 it would be greedy")
    XCTAssertEqual(greedy.requests[0].config.seed, 11)
  }

  func testThoughtsAreReasoningIfTheAppWantsThem() async throws {
    var answer = ScriptedAnswer("Yes.")
    answer.pieces.insert(Piece(text: "Hm", token: 1, channel: .thinking), at: 0)
    let quiet = try await ask(StreamFuseLanguageModel(Script([answer]).model()), [prompt("?")])
    XCTAssertEqual(quiet.compactMap { $0 as? Channel.Reasoning }.count, 0)
    let model = StreamFuseLanguageModel(Script([answer]).model(), reasoning: true)
    XCTAssert(model.capabilities.contains(.reasoning) && model.capabilities.contains(.toolCalling))
    let sent = try await ask(model, [prompt("?")])
    XCTAssertEqual(sent.compactMap { ($0 as? Channel.Reasoning)?.action }, [.text("Hm", 1)])
    guard case .usage(let usage)? = (sent.last as? Channel.Response)?.action else { return XCTFail("\(sent)") }
    XCTAssertEqual(usage.output, .init(totalTokenCount: 2, reasoningTokenCount: 1))
  }

  func testACancelledRequestEndsWithCancellationErrorAndItsChatIsNotKept() async throws {
    let script = Script([ScriptedAnswer("a", "b", "c"), ScriptedAnswer("d")])
    let model = StreamFuseLanguageModel(script.model())
    var channel = LanguageModelExecutorGenerationChannel()
    channel.onSend = { _ in withUnsafeCurrentTask { $0?.cancel() } }
    let task = Task { [channel] in try await ask(model, [prompt("1")], channel: channel) }
    do {
      _ = try await task.value
      XCTFail("nothing was thrown")
    } catch { XCTAssert(error is CancellationError, "\(error)") }
    XCTAssertEqual(channel.events.count, 1)
    try await ask(model, [prompt("1"), response("a"), prompt("2")])
    XCTAssertEqual(script.requests.map(\.chat), [0, 1])
  }

  func testRefusalsAreTheFrameworksErrors() async throws {
    var full = ScriptedAnswer(), grammar = ScriptedAnswer(), broken = ScriptedAnswer()
    full.refusal = StreamFuseError(.contextFull, "the question does not fit")
    grammar.refusal = StreamFuseError(.badGrammar, "schema: not")
    broken.refusal = StreamFuseError(.execution, "no pass")
    let bundle = Script([full, grammar, broken]).model(), model = StreamFuseLanguageModel(bundle)
    do {
      try await ask(model, [prompt("12345")])
      XCTFail("nothing was thrown")
    } catch LanguageModelError.contextSizeExceeded(let found) {
      XCTAssertEqual([found.contextSize, found.tokenCount], [bundle.contextLength, 5])
      XCTAssertEqual(found.debugDescription, "the question does not fit")
    }
    do {
      try await ask(model, [prompt("1")], schema: GenerationSchema(json: "{}"))
      XCTFail("nothing was thrown")
    } catch LanguageModelError.unsupportedGenerationGuide(let found) {
      XCTAssertEqual(found.debugDescription, "schema: not")
    }
    do {
      try await ask(model, [prompt("1")])
      XCTFail("nothing was thrown")
    } catch { XCTAssertEqual((error as? StreamFuseError)?.code, .execution) }
    let image = Transcript.Entry.prompt(.init(segments: [.attachment(.init())]))
    for entries in [[image], [prompt("1"), response("2")], []] {
      do {
        try await ask(model, entries)
        XCTFail("nothing was thrown")
      } catch LanguageModelError.unsupportedTranscriptContent(let found) {
        XCTAssertEqual(found.unsupportedContent, entries.suffix(1))
      }
    }
  }

  /// Starts the preparation of a session's chat.
  private func prewarm(_ model: StreamFuseLanguageModel, _ entries: [Transcript.Entry]) {
    StreamFuseLanguageModel.Executor(configuration: model.executorConfiguration)
      .prewarm(model: model, transcript: Transcript(entries: entries))
  }

  private func until(_ condition: () -> Bool) async throws {
    for _ in 0..<2000 where !condition() { try await Task.sleep(for: .milliseconds(5)) }
    XCTAssert(condition())
  }

  func testPrewarmingPreparesTheChatOfTheFirstRequest() async throws {
    let script = Script([ScriptedAnswer("a")])
    let model = StreamFuseLanguageModel(script.model())
    let instructions = Transcript.Entry.instructions(.init(segments: text("Be brief."), toolDefinitions: [try weather()]))
    prewarm(model, [instructions])
    try await until { script.state.withLock { $0.prepared } == 1 }
    try await ask(model, [instructions, prompt("1")], tools: [weather()])
    XCTAssertEqual(script.opened.count, 1)
    XCTAssertEqual(script.requests[0].config.toolChoice, .auto)
  }

  func testPrewarmingThatEndsAfterALaterRequestDoesNotTakeThePlaceOfItsChat() async throws {
    let script = Script([ScriptedAnswer("1"), ScriptedAnswer("2")])
    let model = StreamFuseLanguageModel(script.model()), gate = DispatchSemaphore(value: 0)
    script.state.withLock { $0.preparing = { gate.wait() } }
    prewarm(model, [.instructions(.init(segments: text("Be brief."), toolDefinitions: []))])
    try await until { script.opened.count == 1 }
    try await ask(model, [prompt("a")])
    gate.signal()
    try await until { script.state.withLock { $0.prepared } == 1 }
    try await Task.sleep(for: .milliseconds(50))
    try await ask(model, [prompt("a"), response("1"), prompt("b")])
    XCTAssertEqual(script.requests.map(\.chat), [1, 1])
  }

  func testARequestWhileItsChatIsPrewarmedUsesThatChat() async throws {
    let script = Script([ScriptedAnswer("1")])
    let model = StreamFuseLanguageModel(script.model()), gate = DispatchSemaphore(value: 0)
    script.state.withLock { $0.preparing = { gate.wait() } }
    prewarm(model, [])
    try await until { script.opened.count == 1 }
    let asking = Task { try await ask(model, [prompt("a")]) }
    try await Task.sleep(for: .milliseconds(50))
    gate.signal()
    _ = try await asking.value
    XCTAssertEqual(script.opened.count, 1)
  }

  func testPrewarmingASessionThatHasAChatKeepsIt() async throws {
    let script = Script([ScriptedAnswer("1"), ScriptedAnswer("2")])
    let model = StreamFuseLanguageModel(script.model())
    try await ask(model, [prompt("a")])
    prewarm(model, [prompt("a"), response("1")])
    try await until { script.state.withLock { $0.prepared } == 1 }
    try await ask(model, [prompt("a"), response("1"), prompt("b")])
    XCTAssertEqual(script.requests.map(\.chat), [0, 0])
  }

  func testPrewarmingDoesNotEndAnAnswer() async throws {
    let script = Script([ScriptedAnswer("a", "b", "c")])
    let chat = script.model().chat()
    var all = ""
    for try await piece in chat.stream(to: "1") {
      all += piece.text
      try await chat.session.prepareIfIdle()
    }
    XCTAssertEqual(all, "abc")
    try await chat.session.prepareIfIdle()
    XCTAssertEqual(script.state.withLock { $0.prepared }, 1)
  }
}
