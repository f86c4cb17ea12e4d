import Foundation
import XCTest

@testable import AppModel

/// The benchmark over the fake library, and its report.
final class BenchmarkTests: AppTestCase {
  private func measured(_ text: String, _ rate: Double) -> Measured { Measured(text: text, statistics: figures(9, rate: rate)) }

  func testBothModesAnswerOnTheChatsOwnModelWhichTheChatHasAgainAfterwards() async throws {
    try use("demo")
    let parts = start()
    try await ready(parts.chat)
    let task = parts.benchmark.run(prompt: "Hello", tokens: "8")
    XCTAssertEqual(parts.benchmark.note, "Answer 1 of 7")
    await task?.value
    let report = try XCTUnwrap(parts.benchmark.result).report
    XCTAssertEqual(parts.benchmark.note, "The benchmark is finished.")
    XCTAssertEqual(parts.benchmark.done, 7)
    XCTAssertTrue(report.contains("Device: X\nBundle: demo, threads: automatic\n"), report)
    XCTAssertNotNil(report.firstMatch(of: /tokens\/s, median +20\.0 +40\.0\n/), report)
    XCTAssertTrue(report.contains("All answers are equal."), report)
    XCTAssertEqual(library.opened, 1)
    XCTAssertEqual(parts.chat.state.phase, .ready)
  }

  func testTheReportSaysWhatSlowedTheDevice() async throws {
    try use("demo")
    var heat = [Heat.normal, .hot]
    let parts = Parts(library, folder: root, defaults: defaults, device: ["Device: X"]) {
      Power(heat.removeFirst(), isSaving: heat.isEmpty)
    }
    await parts.begin().value
    try await ready(parts.chat)
    await parts.benchmark.run(prompt: "Hello", tokens: "8")?.value
    let report = try XCTUnwrap(parts.benchmark.result).report
    XCTAssertNotNil(report.firstMatch(of: /Peak memory: [1-9][0-9.,]* [kMG]B\n/), report)
    XCTAssertTrue(report.contains("\nHeat: normal before, hot after\nBattery saver is on, which slows the processor.\n\n"), report)
  }

  func testCancelGivesTheModelBack() async throws {
    try use("demo")
    let parts = start()
    try await ready(parts.chat)
    library.gate = 3
    let task = parts.benchmark.run(prompt: "Hello", tokens: "8")
    try await until { library.gate == 0 }
    XCTAssertEqual(parts.chat.state.note, "The benchmark or the check of this device is running.")
    parts.benchmark.cancel()
    library.gate = nil
    await task?.value
    XCTAssertEqual(parts.benchmark.note, "The benchmark was cancelled.")
    let turns = try await ask(parts.chat, "Hello")
    XCTAssertEqual(turns.count, 2)
  }

  func testTheBenchmarkIsRefusedWhileAnswersAreRemembered() async throws {
    try use("demo")
    let parts = start()
    try await ready(parts.chat)
    parts.settings.set(.remembersAnswers, true)
    XCTAssertNil(parts.benchmark.run(prompt: "Hello", tokens: "8"))
    XCTAssertEqual(parts.benchmark.note, Word.benchmarkRemembers())
    parts.settings.set(.remembersAnswers, false)
    await parts.benchmark.run(prompt: "Hello", tokens: "8")?.value
    XCTAssertNotNil(parts.benchmark.result)
  }

  func testWhatCannotBeMeasuredIsNamed() async throws {
    let parts = start()
    await parts.benchmark.run(prompt: "", tokens: "")?.value
    XCTAssertEqual(parts.benchmark.note, "Choose a bundle first.")
    XCTAssertNil(parts.benchmark.run(prompt: "", tokens: "none"))
    XCTAssertEqual(parts.benchmark.note, "\"none\" is not a number.")
  }

  func testTheReportHasMediansAndSaysWhetherTheAnswersAreEqual() async {
    var runs = Measurement(
      bundle: "demo", threads: 4,
      plain: [measured("a", 20), measured("a", 10), measured("a", 11)],
      speculative: [measured("a", 30), measured("a", 22), measured("a", 21)])
    let result = runs.result(["Device: X"])
    XCTAssertEqual(result.speedup, "2.00")
    XCTAssertEqual(
      result.rows.first { $0.name == "prompt tokens/s" }, BenchmarkRow(name: "prompt tokens/s", plain: "9", speculative: "9"))
    let text = result.report
    XCTAssertTrue(text.hasPrefix("streamfuse benchmark\nDevice: X\nBundle: demo, threads: 4\n"), text)
    XCTAssertNotNil(text.firstMatch(of: /tokens\/s, median +11\.0 +22\.0\ntokens\/s, slowest +10\.0 +21\.0\ntokens\/s, fastest +20\.0 +30\.0\n/), text)
    XCTAssertTrue(text.contains("Speed-up: 2.00\nAll answers are equal.\n"), text)
    XCTAssertFalse(text.contains("Plain passes"), text)
    XCTAssertFalse(text.contains("Heat"), "the system does not report it")
    runs.speculative = [measured("b", 1)]
    XCTAssertTrue(runs.result([]).report.contains("The answers differ."))
  }
}
