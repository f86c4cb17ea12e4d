// The executor over a real bundle: an object of a schema, and a tool's call and its output.
import Foundation
import FoundationModels
import StreamFuse
import StreamFuseFoundationModels
import XCTest

final class FoundationModelsBundleTests: XCTestCase {
  private let bundle = URL(filePath: #filePath).appending(path: "../../../../../build/demo").standardizedFileURL

  private func answer(
    _ model: StreamFuseLanguageModel, _ entries: [Transcript.Entry], tools: [Transcript.ToolDefinition] = [],
    schema: GenerationSchema? = nil, mode: GenerationOptions.ToolCallingMode? = nil
  ) async throws -> [any LanguageModelExecutorGenerationChannel.Event] {
    let channel = LanguageModelExecutorGenerationChannel()
    let request = LanguageModelExecutorGenerationRequest(
      id: UUID(), transcript: Transcript(entries: entries), enabledTools: tools, schema: schema,
      generationOptions: .init(samplingMode: .greedy, maximumResponseTokens: 60, toolCallingMode: mode),
      contextOptions: .init(includeSchemaInPrompt: false))
    try await StreamFuseLanguageModel.Executor(configuration: model.executorConfiguration)
      .respond(to: request, model: model, streamingInto: channel)
    return channel.events
  }

  private func prompt(_ content: String) -> Transcript.Entry {
    .prompt(.init(segments: [.text(.init(content: content))]))
  }

  func testAnObjectAndAToolOfTheRealModel() async throws {
    let model = StreamFuseLanguageModel(try await StreamFuse.load(from: bundle) { $0.costFolder = nil })
    let json = #"{"type":"object","x-order":["city","rains"],"properties":{"rains":{"type":"boolean"},"#
      + #""city":{"enum":["Rome","Oslo"]}},"required":["city","rains"],"additionalProperties":false}"#
    let sent = try await answer(
      model, [prompt("It rains in Rome. Give the city and whether it rains as JSON.")],
      schema: GenerationSchema(json: json))
    let texts = sent.compactMap { event -> String? in
      guard case .text(let text, _)? = (event as? LanguageModelExecutorGenerationChannel.Response)?.action else { return nil }
      return text
    }
    XCTAssertGreaterThan(texts.count, 3, "it is streamed")
    XCTAssert(texts.joined().hasPrefix(#"{"city":"Rome","rains":"#), texts.joined())
    XCTAssertNotNil(try? JSONSerialization.jsonObject(with: Data(texts.joined().utf8)))

    let query = #"{"type":"object","properties":{"city":{"enum":["Rome","Oslo"]}},"required":["city"],"additionalProperties":false}"#
    let tool = Transcript.ToolDefinition(
      name: "weather", description: "The weather of a city.", parameters: try GenerationSchema(json: query))
    let called = try await answer(model, [prompt("How is the weather in Rome?")], tools: [tool], mode: .required)
    let call = try XCTUnwrap(
      called.lazy.compactMap { event -> (String, String)? in
        guard case .call(let call)? = (event as? LanguageModelExecutorGenerationChannel.ToolCalls)?.action,
          case .arguments(let text, _) = call.action
        else { return nil }
        return (call.id, text)
      }.first)
    XCTAssertEqual(call.1, #"{"city":"Rome"}"#)
    let entries = [
      prompt("How is the weather in Rome?"),
      .toolCalls(.init([.init(id: call.0, toolName: "weather", arguments: try GeneratedContent(json: call.1))])),
      .toolOutput(.init(id: call.0, toolName: "weather", segments: [.text(.init(content: "sunny, 18 degrees"))])),
    ]
    // In the chat that called it, and in one that begins with the transcript.
    for model in [model, StreamFuseLanguageModel(try await StreamFuse.load(from: bundle) { $0.costFolder = nil })] {
      let events = try await answer(model, entries, tools: [tool], mode: .disallowed)
      XCTAssertGreaterThan(events.count, 1)
    }
  }
}
