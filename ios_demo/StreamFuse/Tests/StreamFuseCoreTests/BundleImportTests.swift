// Untrusted imports: no file is written outside the store, a failed import leaves nothing, and the error names the cause.
import Foundation
import XCTest

@testable import StreamFuseCore

final class BundleImportTests: StoreTestCase {
  /// A folder that the user may choose.
  private func outside(_ name: String = "demo", _ files: [String: String]) throws -> FolderSource {
    for (path, text) in files { try write(text, "outside/\(name)/\(path)") }
    return FolderSource(home.appending(path: "outside/\(name)"))
  }

  private var small: BundleStore {
    var limits = BundleLimits()
    (limits.files, limits.bytes, limits.depth) = (5, 10_000, 3)
    return store(limits: limits)
  }

  private func refusedImport(_ source: FolderSource, _ named: String, line: UInt = #line) async {
    await refused(.badFile, named, line: line) { _ = try await self.small.importBundle(source) }
    XCTAssertEqual(left, [], line: line)
  }

  func testASoundFolderIsListedUnderItsNameTheSecondOneBesideIt() async throws {
    let weights = "model.mlpackage/Data/weights.bin"
    let source = try outside("demo", ["manifest.json": "{}", weights: "12345", ".DS_Store": "x"])
    for name in ["demo", "demo 2"] {
      let bundle = try await small.importBundle(source)
      XCTAssertEqual(bundle.name, name)
      XCTAssertEqual(bundle.bytes, 7)
      XCTAssertEqual(try Data(contentsOf: bundle.folder.appending(path: weights)), Data("12345".utf8))
    }
    let around = try await small.importBundle(outside("unpacked", ["inner/manifest.json": "{}", "__MACOSX/inner": "x"]))
    XCTAssertEqual([around.name, "\(around.bytes)"], ["unpacked", "2"], "a folder around it")
  }

  func testUntrustedFoldersAreRefused() async throws {
    try write("secret", "secret/file")
    for (name, target) in [("weights.bin", "secret/file"), ("weights", "secret")] {
      let source = try outside("evil-\(name)", ["manifest.json": "{}"])
      try FileManager.default.createSymbolicLink(
        at: source.folder.appending(path: name), withDestinationURL: home.appending(path: target))
      await refusedImport(source, "the name \"\(name)\" is not allowed in a bundle")
    }
    let deep = try outside("deep", ["manifest.json": "{}", "a/b/c/d": ""])
    await refusedImport(deep, "the name \"a/b/c\" is not allowed")
    let large = String(repeating: "x", count: 10_000)
    await refusedImport(try outside("large", ["manifest.json": "{}", "model.pte": large]), "exceeds the limit")
    let files = Dictionary(uniqueKeysWithValues: (0..<5).map { ("file\($0)", "") })
    await refusedImport(try outside("many", files.merging(["manifest.json": "{}"]) { $1 }), "more than 5 files")
    await refusedImport(try outside("photos", ["a.jpg": "x"]), "photos contains no bundle: manifest.json is missing")
    await refusedImport(try outside("bad", ["manifest.json": "{}", "damaged": ""]), "model.pte is damaged")
    let full = store(freeBytes: { _ in 64 << 20 }), source = try outside("full", ["manifest.json": "{}"])
    await refused(.noSpace, "too little free space") { _ = try await full.importBundle(source) }
  }

  func testUntrustedNamesBecomePlainOnes() async throws {
    for (wanted, name) in [("a:b*", "a_b_"), (".. .", "bundle"), (" 模型.", "模型")] {
      let bundle = try await small.importBundle(outside(wanted, ["manifest.json": "{}"]))
      XCTAssertEqual(bundle.name, name)
    }
  }

  func testACancelledImportLeavesNothing() async throws {
    let gate = DispatchSemaphore(value: 0)
    let plain = try outside("demo", ["manifest.json": "{}", "model.pte": "1"])
    let source = FolderSource(plain.folder) { place, body in
      if place.lastPathComponent == "model.pte" { gate.wait() }
      try body(place)
    }
    let store = store()
    let running = Task { try await store.importBundle(source) }
    running.cancel()
    gate.signal()
    do {
      _ = try await running.value
      XCTFail("it was not cancelled")
    } catch { XCTAssert(error is CancellationError, "\(error)") }
    XCTAssertEqual(left, [])
  }

  func testALinkInABundleIsDeletedWhatItLeadsToIsNot() async throws {
    try write("still here", "elsewhere/precious")
    let bundle = try await small.importBundle(outside("demo", ["manifest.json": "{}"]))
    try FileManager.default.createSymbolicLink(
      at: bundle.folder.appending(path: "inner"), withDestinationURL: home.appending(path: "elsewhere"))
    try await small.delete("demo")
    XCTAssertEqual(left, [])
    XCTAssertEqual(try String(contentsOf: home.appending(path: "elsewhere/precious"), encoding: .utf8), "still here")
  }
}
