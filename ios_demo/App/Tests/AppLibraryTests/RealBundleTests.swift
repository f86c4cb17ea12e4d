import AppLibrary
import Foundation
import StreamFuse
import XCTest

@testable import AppModel

/// The app's behaviour over the real library and the demo bundle, as a person uses it.
@MainActor
final class RealBundleTests: XCTestCase, @unchecked Sendable {
  private let repository = URL(filePath: #filePath).appending(path: "../../../../..").standardizedFileURL
  private let root = FileManager.default.temporaryDirectory.appending(path: UUID().uuidString)
  private let suite = UUID().uuidString

  override func tearDown() async throws {
    try? FileManager.default.removeItem(at: root)
    UserDefaults.standard.removePersistentDomain(forName: suite)
  }

  private func start() -> Parts {
    let parts = Parts(InstalledLibrary(), folder: root, defaults: UserDefaults(suiteName: suite)!, device: [])
    parts.begin()
    return parts
  }

  private func until(_ condition: () -> Bool) async throws {
    for _ in 0..<30_000 where !condition() { try await Task.sleep(for: .milliseconds(2)) }
    XCTAssertTrue(condition())
  }

  private func ask(_ chat: ChatModel, _ words: String) async throws -> Turn {
    try await until { chat.state.phase == .ready }
    chat.send(words)
    try await until { chat.state.phase == .ready }
    XCTAssertNil(chat.state.error)
    return try XCTUnwrap(chat.state.turns.last)
  }

  func testABundleIsBroughtInAskedStoppedLeftAndAskedAgain() async throws {
    let demo = repository.appending(path: "build/demo").resolvingSymlinksInPath()
    let model = try await StreamFuse.load(from: demo)
    let words = ["Why is the sky blue?", "And at night?"]
    let straight = model.chat()
    var wanted: [String] = []
    for question in words {
      wanted.append(try await straight.respond(to: question) { ($0.temperature, $0.maxNewTokens) = (0, 24) }.text)
    }

    let parts = start()
    await parts.bundles.take(demo)?.value
    XCTAssertEqual(parts.bundles.message, "demo is checked and in use.")
    await parts.check.run()?.value
    XCTAssertEqual(parts.check.lines.count, 1)
    XCTAssertTrue(parts.check.lines[0].hasPrefix("All passes give the recorded results, bit for bit: decode, "), parts.check.lines[0])
    try parts.settings.set(.temperature, "0")
    try parts.settings.set(.maxNewTokens, "24")
    let first = try await ask(parts.chat, words[0])
    XCTAssertEqual(first.text, wanted[0])
    XCTAssertEqual(first.runs.map(\.text).joined(), wanted[0], "by whom each part came, drafted or not")
    await parts.leave().value

    let again = start()
    again.settings.set(.off)
    let second = try await ask(again.chat, words[1])
    XCTAssertEqual(second.text, wanted[1], "in a new process, without drafts")
    XCTAssertEqual(second.runs.count, 1)
    XCTAssertNotNil(second.figures?.chip())

    let chat = try XCTUnwrap(again.chats.open)
    await again.chats.new().value
    await again.chats.open(chat).value
    again.chat.edit(2)
    let edited = try await ask(again.chat, words[1])
    XCTAssertEqual(edited.text, wanted[1], "of turns that are read again")

    again.settings.set(.remembersAnswers, true)
    await again.chat.applySettings()?.value
    await again.chats.new().value
    let remembered = try await ask(again.chat, words[0])
    XCTAssertEqual(remembered.text, wanted[0])
    let answers = root.appending(path: "memory/demo.answers").path
    func bytes() throws -> Int { try FileManager.default.attributesOfItem(atPath: answers)[.size] as? Int ?? 0 }
    let kept = try bytes()
    _ = await again.chat.forgetAnswers().value
    XCTAssertLessThan(try bytes(), kept)

    try again.settings.set(.maxNewTokens, "400")
    again.chat.send("Tell me a long story.")
    try await until { (again.chat.answer.live?.tokens ?? 0) > 3 }
    again.chat.stop()
    try await until { again.chat.state.phase == .ready }
    XCTAssertEqual(again.chat.state.note, "Stopped.")

    again.settings.set(.remembersAnswers, false)  // the benchmark is refused with it
    await again.chat.applySettings()?.value
    await again.benchmark.run(prompt: words[0], tokens: "12")?.value
    let report = try XCTUnwrap(again.benchmark.result, again.benchmark.message ?? "").report
    XCTAssertTrue(report.contains("All answers are equal."), report)
  }
}
