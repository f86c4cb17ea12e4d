// CoreMLRunner.swift over declarations of Core ML: what it compiles, loads, keeps and removes, and a text through it.
import FakeCoreML
import Foundation
import StreamFuseCore
import XCTest

@testable import StreamFuseCoreML

final class CoreMLRunnerTests: XCTestCase {
  private let root = FileManager.default.temporaryDirectory.appending(path: UUID().uuidString)
  private var kept: URL { root.appending(path: "compiled") }
  private var package: URL { root.appending(path: "model.mlpackage") }
  private var events: CoreMLWitness.Events { CoreMLWitness.events(package.path) }

  override func setUpWithError() throws { try write(units: "cpu_and_ne") }

  override func tearDown() { try? FileManager.default.removeItem(at: root) }

  /// Writes a package of one layer.
  private func write(units: String) throws {
    let fields = [
      "num_layers": "1", "num_msa_layers": "0", "kv_heads": "[1]", "head_dim": "2", "layout": "plain", "dtype": "float16",
      "methods": "[\"prefill\", \"decode\"]", "compute_units": units,
    ]
    let metadata = Dictionary(uniqueKeysWithValues: fields.map { ("streamfuse.\($0)", $1) })
    try FakePackageFolder(package: package.path, metadata: metadata).write(to: package)
  }

  private let spec = ModelSpec(capacity: 8, vocabSize: 10, prefillRows: 2, identity: "a bundle")

  private func open(_ units: ComputeUnits? = nil) async throws -> PackageEngine { try await opening(units)() }

  /// Opens the package in any task.
  private func opening(_ units: ComputeUnits? = nil) -> @Sendable () async throws -> PackageEngine {
    { [package, spec, kept] in try await openPackage(package, spec: spec, units: units, compiled: kept) }
  }

  func testANewPackageIsCompiledOnceAndItsFunctionsArePreparedOneByOne() async throws {
    var engine: PackageEngine? = try await open()
    XCTAssertEqual(events.compiled, 1)
    let place = "on cpuAndNeuralEngine"
    XCTAssertEqual(events.loaded, ["decode", "prefill", "prefill", "decode"].map { "\($0) \(place)" })
    XCTAssertEqual(events.most, 2, "no function is loaded twice at a time")
    engine = nil
    XCTAssertEqual(events.alive, 0)
    engine = try await open()
    XCTAssertEqual(events.compiled, 1, "the compiled package was kept")
    XCTAssertEqual(events.loaded.dropFirst(4), ["decode \(place)", "prefill \(place)"], "and nothing is loaded twice")
    XCTAssertNotNil(engine)
  }

  func testThePackageOrTheCallerSaysWhereItRuns() async throws {
    try write(units: "cpu_and_gpu")
    let first = try await open()
    XCTAssert(first.device.hasSuffix("Core ML on cpu_and_gpu"), first.device)
    XCTAssertEqual(events.loaded.suffix(2), ["prefill on cpuAndGPU", "decode on cpuAndGPU"])
    let second = try await open(.cpuOnly)
    XCTAssert(second.device.hasSuffix("Core ML on cpu_only"), second.device)
    XCTAssertEqual(Set(events.loaded.suffix(2)), ["prefill on cpuOnly", "decode on cpuOnly"])
  }

  func testACompiledPackageThatDoesNotLoadIsCompiledAgain() async throws {
    _ = try await open()
    let compiled = try XCTUnwrap(CompiledPackages(folder: kept).kept(spec.identity))
    try Data("noise".utf8).write(to: compiled.appending(path: "metadata.json"))
    _ = try await open()
    XCTAssertEqual(events.compiled, 2)
    _ = try await open()
    XCTAssertEqual(events.compiled, 2)
  }

  func testWhatCoreMLDoesNotCompileOrLoadIsSaidInOneSentence() async throws {
    let nothing = root.appending(path: "nothing.mlpackage")
    await refuses("Core ML cannot compile \(nothing.path): ") { [spec] in _ = try await openPackage(nothing, spec: spec) }
    try Data("noise".utf8).write(to: package.appending(path: "metadata.json"))
    await refuses("Core ML cannot load decode of ", " on cpu_only: ") { [opening] in _ = try await opening(.cpuOnly)() }
  }

  func testWhatIsCompiledButNotKeptIsDeletedWithTheEngineOrWhenItDoesNotLoad() async throws {
    var engine: PackageEngine? = try await openPackage(package, spec: spec)
    XCTAssertEqual(left.count, 1)
    XCTAssertNotNil(engine)
    engine = nil
    XCTAssertEqual(left, [])
    try Data("noise".utf8).write(to: package.appending(path: "metadata.json"))
    await refuses("Core ML cannot load decode of ") { [package, spec] in _ = try await openPackage(package, spec: spec) }
    try write(units: "cpu_and_ne")
    try Data("a file in its place".utf8).write(to: kept)
    do {
      _ = try await open()
      XCTFail("nothing was thrown")
    } catch {}
    XCTAssertEqual(events.compiled, 3)
    XCTAssertEqual(left, [])
  }

  /// What Core ML compiled and nobody deleted or moved.
  private var left: [URL] { events.made.filter { FileManager.default.fileExists(atPath: $0.path) } }

  /// Expects the code `badProgram` and all parts in the sentence.
  private func refuses(_ parts: String..., body: () async throws -> Void) async {
    do {
      try await body()
      XCTFail("nothing was thrown")
    } catch {
      let known = error as? StreamFuseError
      XCTAssertEqual(known?.code, .badProgram, "\(error)")
      for part in parts { XCTAssert(known?.message.contains(part) ?? false, "\(error)") }
    }
  }

  func testCachesTooLargeForASurfaceAreZerosToo() async throws {
    let large = ModelSpec(capacity: 20_000, vocabSize: 10, prefillRows: 2, identity: "a large bundle")
    answerWithTheNextNumber { inputs in
      XCTAssertEqual(inputs["key_cache_0"]?.shape, [20_000, 1, 2])
      XCTAssertEqual(inputs["key_cache_0"]?.dense, Data(count: 20_000 * 2 * 2))
    }
    let model = try await Model(spec: large, engine: openPackage(package, spec: large, compiled: kept))
    let tokens = try await model.session().stream(.tokens([1])) { $0.maxNewTokens = 1 }.response().tokens
    XCTAssertEqual(tokens, [2])
  }

  func testLoadsAtTheSameTimeAllSucceedAndOneCompiledPackageStays() async throws {
    let open = opening()
    try await withThrowingTaskGroup(of: Void.self) { group in
      for _ in 0..<8 { group.addTask { _ = try await open() } }
      try await group.waitForAll()
    }
    XCTAssertEqual(try FileManager.default.contentsOfDirectory(atPath: kept.path).count, 1)
  }

  func testWhatIsKeptGoesWithItsBundle() async throws {
    _ = try await open()
    removeCompiledPackage(identity: "another bundle", in: kept)
    XCTAssertNotNil(CompiledPackages(folder: kept).kept(spec.identity))
    removeCompiledPackage(identity: spec.identity, in: kept)
    XCTAssertNil(CompiledPackages(folder: kept).kept(spec.identity))
  }

  func testACancelledLoadEndsAndKeepsWhatWasCompiled() async throws {
    let open = opening()
    let task = Task {
      withUnsafeCurrentTask { $0?.cancel() }
      return try await open()
    }
    do {
      _ = try await task.value
      XCTFail("nothing was thrown")
    } catch { XCTAssert(error is CancellationError, "\(error)") }
    XCTAssertEqual(events.loaded, [])
    _ = try await open()
    let again = Task {
      withUnsafeCurrentTask { $0?.cancel() }
      return try await open()
    }
    _ = await again.result
    XCTAssertNotNil(CompiledPackages(folder: kept).kept(spec.identity))
  }

  func testATextIsWrittenThroughCoreMLsTypes() async throws {
    let tokens = try await fourTokens()
    XCTAssertEqual(tokens, [4, 5, 6, 7])
    XCTAssertEqual(events.backed, 3 * 3, "all outputs of decode but those of its first pass are in memory of their own")
  }

  func testAFunctionThatRefusesMemoryForItsOutputsIsAskedOnce() async throws {
    CoreMLWitness.refuseOutputBackings(package.path)
    let tokens = try await fourTokens()
    XCTAssertEqual(tokens, [4, 5, 6, 7])
    XCTAssertEqual(events.refused, ["decode"])
    XCTAssertEqual(events.backed, 0)
  }

  private func fourTokens() async throws -> [Int] {
    answerWithTheNextNumber()
    let model = try await Model(spec: spec, engine: open())
    return try await model.session().stream(.tokens([1, 2, 3])) { $0.maxNewTokens = 4 }.response().tokens
  }

  /// Makes each token followed by the next number.
  private func answerWithTheNextNumber(_ check: @escaping @Sendable (_ inputs: [String: MLMultiArray]) -> Void = { _ in }) {
    CoreMLWitness.answer(package.path) { function, inputs in
      check(inputs)
      let rows = function == "prefill" ? 2 : 1
      var outputs: [String: MLMultiArray] = [:]
      for name in ["new_key_0", "new_value_0"] {
        outputs[name] = try MLMultiArray(shape: [rows, 1, 2].map { NSNumber(value: $0) }, dataType: .float16)
      }
      let best = try MLMultiArray(shape: [1], dataType: .int32)
      let token = inputs["input_ids"]!.withUnsafeMutableBytes { bytes, _ in bytes.load(as: Int32.self) }
      best.withUnsafeMutableBytes { bytes, _ in bytes.storeBytes(of: (token + 1) % 10, as: Int32.self) }
      outputs["best"] = best
      return outputs
    }
  }
}
