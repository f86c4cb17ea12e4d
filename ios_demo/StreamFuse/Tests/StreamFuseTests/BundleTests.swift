// Opening bundles: the facts of a model, and what is wrong with a damaged or foreign bundle.
import Arithmetic
import Foundation
import StreamFuse
import XCTest

final class BundleTests: XCTestCase {
  func testTheLibraryListsItsBackendsAndAModelSaysWhichItUses() async throws {
    let model = try await StreamFuse.load(from: made("build/demo"))
    XCTAssertEqual(model.backend, "kernels")
    let backends = StreamFuse.backends
    XCTAssertEqual(backends["kernels"], .some(nil))
    XCTAssertEqual(backends["xnnpack"], .some(nil))
    XCTAssertFalse(backends.keys.contains("vulkan"))
    #if !canImport(CoreML)
      XCTAssertEqual(backends["mlprogram"], "Core ML is a framework of Apple's systems")
    #endif
  }

  func testAModelSaysWhatItIs() async throws {
    let model = try await opened("build/demo")
    let facts = try JSONDecoder().decode(Manifest.self, from: model.manifest)
    XCTAssertEqual(facts.target, "executorch")
    XCTAssert(facts.model.name.contains("SmolLM2"))
    XCTAssert(model.canChat)
    XCTAssert(model.hasSpeculativeDecodingSupport)
    XCTAssertEqual(model.widths, [4, 8, 16])
    XCTAssertEqual(model.defaults.maxNewTokens, 128)
    XCTAssertGreaterThan(model.contextLength, 0)
    XCTAssertGreaterThan(model.loadMs, 0)
    XCTAssertEqual(model.adapters, [])
  }

  func testAnAdapterThatTheBundleDoesNotHaveIsRefusedByName() async throws {
    let model = try await opened("build/demo")
    func refused(_ error: StreamFuseError) {
      XCTAssertEqual(error.code, .badArgument)
      XCTAssert(error.message.contains("has no adapter 'sql'; it has none"), error.message)
    }
    await assertThrows(StreamFuseError.self, refused) { _ = try await model.chat(adapter: "sql").respond(to: "hi") }
    await assertThrows(StreamFuseError.self, refused) {
      _ = try await model.completion(adapter: "sql").respond(to: "hi")
    }
  }

  func testMeasuredCostsAreKeptAndPrepareMeasuresThem() async throws {
    let folder = temporaryFolder()
    let model = try await StreamFuse.load(from: made("build/e2e")) {
      $0.costFolder = folder
      $0.checkHashes = false
    }
    let completion = model.completion { $0.maxNewTokens = 2 }
    try await completion.prepare()
    let kept = try FileManager.default.contentsOfDirectory(atPath: folder.path)
    XCTAssertEqual(kept.filter { $0.hasSuffix(".costs") }.count, 1)
    let statistics = try await completion.respond(to: "name[Blue Spice]").statistics
    XCTAssertNotNil(statistics.costMs["decode"] ?? nil)
  }

  func testALaterChatDraftsFromWhatAnEarlierOneAnsweredUntilThatIsForgotten() async throws {
    let file = temporaryFolder().appending(path: "memory")
    try FileManager.default.createDirectory(at: file.deletingLastPathComponent(), withIntermediateDirectories: true)
    func loaded() async throws -> Model {
      try await StreamFuse.load(from: made("build/demo")) {
        $0.memoryFile = file
        $0.costFolder = nil
        $0.checkHashes = false
      }
    }
    func answer(_ model: Model) async throws -> (text: String, passes: Int) {
      let answer = try await model.chat { $0.maxNewTokens = 40 }.respond(to: "Name three rivers of France.")
      return (answer.text, answer.statistics.targetForwardPasses)
    }
    let first = try await answer(loaded())
    let model = try await loaded()
    let again = try await answer(model)
    XCTAssertEqual(again.text, first.text)
    XCTAssertLessThan(again.passes, first.passes)
    try model.forget()
    let size = try FileManager.default.attributesOfItem(atPath: file.path)[.size] as? Int
    XCTAssertEqual(size, 0)
  }

  func testADamagedBundleIsRefusedWithASentence() async throws {
    let good = try made("build/demo")
    let folder = temporaryFolder()
    try FileManager.default.copyItem(at: good.resolvingSymlinksInPath(), to: folder)
    func refuses(_ part: String, checkHashes: Bool = false, _ damage: () throws -> Void) async throws {
      try damage()
      do {
        _ = try await StreamFuse.load(from: folder) { $0.checkHashes = checkHashes }
        XCTFail("\(part) was not missed")
      } catch let error as StreamFuseError {
        XCTAssert(error.message.contains(part), error.message)
        XCTAssertFalse(error.message.contains("\n"))
        XCTAssertEqual(error.localizedDescription, error.message)
      }
    }
    let draft = folder.appending(path: "draft.safetensors"), manifest = folder.appending(path: "manifest.json")
    let tables = try Data(contentsOf: draft), original = try Data(contentsOf: manifest)
    var flipped = tables
    flipped[tables.count / 2] ^= 1
    try await refuses("draft.safetensors", checkHashes: true) { try flipped.write(to: draft) }
    try await refuses("draft.safetensors") { try tables.dropLast(8).write(to: draft) }
    try tables.write(to: draft)
    try await refuses("manifest.json") { try Data("{}".utf8).write(to: manifest) }
    let text = String(decoding: original, as: UTF8.self)
    try await refuses("format_version") {
      try Data(text.replacing("\"format_version\": 4", with: "\"format_version\": 99").utf8).write(to: manifest)
    }
    try await refuses("onnx") {
      try Data(text.replacing("\"target\": \"executorch\"", with: "\"target\": \"onnx\"").utf8).write(to: manifest)
    }
    try original.write(to: manifest)
    try await refuses("model.pte") { try Data(count: 1000).write(to: folder.appending(path: "model.pte")) }
    try await refuses("model.pte") { try FileManager.default.removeItem(at: folder.appending(path: "model.pte")) }
    try await refuses(folder.lastPathComponent) { try FileManager.default.removeItem(at: folder) }
  }

  func testWithAKeyOnlyWhatItSignedIsOpened() async throws {
    let good = try made("build/ios/signed")
    let key = "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a"  // of RFC 8032, section 7.1
    let folder = temporaryFolder()
    try FileManager.default.copyItem(at: good, to: folder)
    func open(_ key: String?) async throws {
      _ = try await StreamFuse.load(from: folder) {
        $0.checkHashes = false
        $0.publicKey = key
      } engine: { spec, _ in ArithmeticEngine(spec: spec) }
    }
    func refuses(_ part: String, _ code: StreamFuseError.Code = .badFile, key: String) async {
      do {
        try await open(key)
        XCTFail("nothing was thrown")
      } catch {
        let error = error as? StreamFuseError
        XCTAssertEqual(error?.code, code)
        XCTAssert(error?.message.contains(part) ?? false, error?.message ?? "")
      }
    }
    try await open(key + "\n")
    let other = "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c"  // of the same section
    await refuses("manifest.sig: does not sign", key: other)
    await refuses("64 hexadecimal digits", .badArgument, key: "")
    let graph = folder.appending(path: "model.pte"), signature = folder.appending(path: "manifest.sig")
    var changed = try Data(contentsOf: graph)
    changed[0] ^= 1
    try changed.write(to: graph)
    try await open(nil)
    await refuses("model.pte: files.sha256", key: key)
    try FileManager.default.removeItem(at: signature)
    await refuses("manifest.sig: missing", key: key)
  }

  func testTheTenLinesOfThePageAreTheSampleThatWasCompiled() throws {
    let sample = URL(filePath: #filePath).deletingLastPathComponent().appending(path: "Sample.swift")
    let page = repository.appending(path: "docs/ios.md")
    let body = try String(contentsOf: sample, encoding: .utf8).components(separatedBy: "  // ---\n")[1]
    let lines = body.split(separator: "\n", omittingEmptySubsequences: false).map { $0.dropFirst(2) }
    let shown = lines.joined(separator: "\n")
    XCTAssert(try String(contentsOf: page, encoding: .utf8).contains(shown))
  }
}

/// A folder or file that is not there yet.
func temporaryFolder() -> URL {
  FileManager.default.temporaryDirectory.appending(path: "streamfuse-\(UUID().uuidString)")
}
