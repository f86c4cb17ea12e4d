import Foundation
import StreamFuseCore
import XCTest

@testable import AppModel

/// The device check with the fake library: the text for each result.
final class DeviceCheckTests: AppTestCase {
  private func found(passed: Bool, equal: Bool, _ differences: [String] = []) throws -> SelfTest {
    let parity = """
      {"passed": true, "equal": \(equal), "snr_db": 80, "expected_snr_db": 80, "max_abs_difference": 0.1, "nodes": 8,
       "kept_agreement": 1, "top1_agreement": 1, "stream_top1_agreement": 1}
      """
    let json = """
      {"passed": \(passed), "equal": \(equal), "tokens_equal": true, "ms": 12,
       "methods": {"verify_4": \(parity), "decode": \(parity)}, "differences": []}
      """
    var report = try XCTUnwrap(JSONSerialization.jsonObject(with: Data(json.utf8)) as? [String: Any])
    report["differences"] = differences
    return try JSONDecoder().decode(SelfTest.self, from: JSONSerialization.data(withJSONObject: report))
  }

  private func checked(_ parts: Parts) async throws -> [String] {
    let task = try XCTUnwrap(parts.check.run())
    XCTAssertNil(parts.check.run(), "one at a time")
    await task.value
    XCTAssertFalse(parts.check.isRunning)
    return parts.check.lines
  }

  func testEqualPassesAreNamedAndTheChatHasItsModelAgain() async throws {
    try use("demo")
    let parts = start()
    try await ready(parts.chat)
    library.selfTest = try found(passed: true, equal: true)
    let lines = try await checked(parts)
    XCTAssertEqual(lines, ["All passes give the recorded results, bit for bit: decode, verify_4."])
    XCTAssertEqual(library.opened, 1)
    let turns = try await ask(parts.chat, "Hello")
    XCTAssertEqual(turns.count, 2)
  }

  func testWhatDiffersIsShownWhetherItIsAFaultOrNot() async throws {
    try use("demo")
    let parts = start()
    try await ready(parts.chat)
    let difference = "verify_4: 79.0 dB, not 80.0 dB"
    library.selfTest = try found(passed: true, equal: false, [difference])
    let passed = try await checked(parts)
    XCTAssertEqual(passed, [Word.checkPassed(), difference])
    library.selfTest = try found(passed: false, equal: false, [difference])
    let failed = try await checked(parts)
    XCTAssertEqual(failed, [Word.checkFailed(), difference])
  }

  func testABundleWithoutASelfTestIsAnErrorAndWithoutABundleItAsksForOne() async throws {
    let none = start()
    await none.begin().value
    let asked = try await checked(none)
    XCTAssertEqual(asked, ["Choose a bundle first."])
    try use("demo")
    let parts = start()
    try await ready(parts.chat)
    let refused = try await checked(parts)
    XCTAssertEqual(refused, ["There is no selftest.npz."])
  }
}
