import Foundation
import XCTest

@testable import AppModel

/// Untrusted imports: nothing lands outside, nothing half-made stays, and what is wrong is said.
final class BundlesTests: AppTestCase {
  private var bundles: BundleFolder {
    BundleFolder(folder: root.appending(path: "bundles"), library: library, limits: ImportLimits(files: 5, bytes: 10_000, depth: 3))
  }

  /// A folder that the user may choose.
  private func outside(_ name: String = "demo", _ files: [String: String] = [:]) throws -> URL {
    let folder = root.appending(path: "outside/\(name)")
    for (path, text) in files { try write(text, to: folder.appending(path: path)) }
    return folder
  }

  private func listed(_ expected: [Installed]) async throws {
    let list = await bundles.list()
    XCTAssertEqual(list, expected)
  }

  private func refused(_ source: URL) async -> String {
    do {
      let name = try await bundles.take(source) { _ in }
      XCTFail("took \(name)")
      return ""
    } catch {
      let left = (try? FileManager.default.contentsOfDirectory(atPath: bundles.folder.path)) ?? []
      XCTAssertEqual(left, [])
      return sentence(of: error)
    }
  }

  func testASoundFolderIsListedUnderItsNameTheSecondOneBesideIt() async throws {
    let source = try outside("demo", ["manifest.json": "{}", "model.mlpackage/Data/weights.bin": "12345", ".DS_Store": "x"])
    let first = try await bundles.take(source) { _ in }
    let second = try await bundles.take(source) { _ in }
    XCTAssertEqual([first, second], ["demo", "demo 2"])
    try await listed([Installed(name: "demo", bytes: 7), Installed(name: "demo 2", bytes: 7)])
    XCTAssertEqual(
      try String(contentsOf: bundles.path("demo").appending(path: "model.mlpackage/Data/weights.bin"), encoding: .utf8), "12345")
  }

  func testAFolderAroundTheBundleIsAsGood() async throws {
    _ = try await bundles.take(try outside("unpacked", ["inner/manifest.json": "{}", "__MACOSX/inner": "x"])) { _ in }
    try await listed([Installed(name: "unpacked", bytes: 2)])
  }

  func testLinksThatLeadOutOfTheFolderAreRefused() async throws {
    try write("secret", to: root.appending(path: "secret/file"))
    for (name, target) in [("weights.bin", "secret/file"), ("weights", "secret")] {
      let source = try outside("evil-\(name)", ["manifest.json": "{}"])
      try FileManager.default.createSymbolicLink(
        at: source.appending(path: name), withDestinationURL: root.appending(path: target))
      let said = await refused(source)
      XCTAssertEqual(said, "The name \"\(name)\" is not allowed in a bundle.")
    }
    let deep = await refused(try outside("deep", ["manifest.json": "{}", "a/b/c/d": ""]))
    XCTAssertEqual(deep, "The name \"a/b/c\" is not allowed in a bundle.")
  }

  func testLimitsHold() async throws {
    let large = await refused(try outside("large", ["manifest.json": "{}", "model.pte": String(repeating: "x", count: 10_000)]))
    XCTAssertEqual(large, "It is larger than the limit of 0 MiB.")
    let files = Dictionary(uniqueKeysWithValues: (0..<5).map { ("file\($0)", "") })
    let many = await refused(try outside("many", files.merging(["manifest.json": "{}"]) { $1 }))
    XCTAssertEqual(many, "More than 5 files are no bundle.")
  }

  func testWhatIsNoBundleIsRefused() async throws {
    let none = await refused(try outside("photos", ["a.jpg": "x"]))
    XCTAssertTrue(none.hasPrefix("photos holds no bundle: manifest.json is missing."), none)
    let damaged = await refused(try outside("bad", ["manifest.json": "{}", "damaged": ""]))
    XCTAssertEqual(damaged, "model.pte is not the file that the manifest names.")
    let gone = await refused(root.appending(path: "nowhere"))
    XCTAssertTrue(gone.hasPrefix("A file cannot be read or written: "), gone)
  }

  func testNamesOfStrangersBecomePlainOnes() async throws {
    for (wanted, name) in [("a:b*", "a_b_"), ("...", "bundle"), (" 模型.", "模型")] {
      let source = try outside("names/\(wanted)x", ["manifest.json": "{}"])
      let renamed = source.deletingLastPathComponent().appending(path: wanted == "..." ? ".. ." : wanted)
      try FileManager.default.moveItem(at: source, to: renamed)
      let taken = try await bundles.take(renamed) { _ in }
      XCTAssertEqual(taken, name)
    }
  }

  func testACancelledImportLeavesNothing() async throws {
    let parts = start()
    let source = try outside("demo", ["manifest.json": "{}"])
    let task = try XCTUnwrap(parts.bundles.take(source))
    XCTAssertNil(parts.bundles.take(source), "one at a time")
    parts.bundles.cancel()
    await task.value
    XCTAssertEqual(parts.bundles.message, "The import was cancelled; nothing was kept.")
    XCTAssertNil(parts.bundles.importing)
    XCTAssertEqual(try FileManager.default.contentsOfDirectory(atPath: bundles.folder.path), [])
  }

  func testASweepLeavesAnImportOfThisProcessAlone() async throws {
    let one = bundles, home = root
    library.whileChecking = { await one.sweep(home) }
    let taken = try await one.take(try outside("demo", ["manifest.json": "{}"])) { _ in }
    XCTAssertEqual(taken, "demo")
  }

  func testAnImportIsUsedAndADeletedBundleIsGoneAndWhatAnEndedProcessLeftIsSwept() async throws {
    try write("", to: bundles.folder.appending(path: ".unfinished-1/model.pte"))
    let parts = start()
    await parts.bundles.take(try outside("demo", ["manifest.json": "{}"]))?.value
    XCTAssertEqual(parts.bundles.message, "demo is checked and in use.")
    XCTAssertEqual(parts.bundles.chosen, "demo")
    XCTAssertEqual(parts.chat.state.phase, .ready)
    await parts.bundles.delete("demo").value
    XCTAssertEqual(parts.chat.state.phase, .noBundle)
    XCTAssertEqual(parts.bundles.installed, [])
    XCTAssertEqual(try FileManager.default.contentsOfDirectory(atPath: bundles.folder.path), [])
  }
}
