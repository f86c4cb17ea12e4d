// The Core ML engine over a synthetic package: large token ids, saved rows, and what is wrong with a package.
import CStreamFuse
import FakePackage
import Foundation
import XCTest

@testable import StreamFuseCore
@testable import StreamFuseCoreML

final class PackageTests: XCTestCase {
  func testATokenAbove65535IsFoundInTheLogitsWhateverBestSays() async throws {
    let vocab = 70_000, wanted = 69_999
    for floats in [ElementType.float16, .float32] {
      let spec = ModelSpec(capacity: 8, vocabSize: vocab, prefillRows: 2, identity: "large")
      let package = FakePackage { method, _ in
        var outputs = newRows(floats, method == "prefill" ? 2 : 1)
        guard method == "decode" else { return outputs }
        outputs["logits"] = FakeTensor(floats, [1, vocab])
        outputs["logits"]!.access { memory, _ in
          if floats == .float16 { memory.assumingMemoryBound(to: UInt16.self)[wanted] = 0x4880 }  // 9
          if floats == .float32 { memory.assumingMemoryBound(to: Float.self)[wanted] = 9 }
        }
        outputs["best"] = integers([Int32(wanted - 65_536)])  // what 16 bits would leave of it
        return outputs
      }
      let layout = try PackageLayout(metadata: metadata(floats))
      let model = try Model(spec: spec, engine: PackageEngine(runner: package, spec: spec, layout: layout))
      let answer = model.session().stream(.tokens([69_998, 66_000, 1])) { $0.maxNewTokens = 2 }
      let tokens = try await answer.response().tokens
      XCTAssertEqual(tokens, [wanted, wanted])
    }
  }

  func testIdsOfFewerThan32BitsAreRefused() async throws {
    let spec = ModelSpec(capacity: 8, vocabSize: 50, prefillRows: 2, identity: "narrow")
    let package = FakePackage { method, _ in
      newRows(.float16, method == "prefill" ? 2 : 1).merging(["best": FakeTensor(.float16, [1])]) { $1 }
    }
    let layout = try PackageLayout(metadata: metadata(.float16))
    let model = try Model(spec: spec, engine: PackageEngine(runner: package, spec: spec, layout: layout))
    do {
      _ = try await model.session().stream(.tokens([1, 2])).response()
      XCTFail("nothing was thrown")
    } catch let error as StreamFuseError {
      XCTAssertEqual(error.code, .badProgram)
      XCTAssert(error.message.contains("int32"), error.message)
    }
  }

  func testSavedRowsComeBackInBothLayouts() throws {
    for layoutName in ["plain", "ane"] {
      let layout = try PackageLayout(metadata: metadata(.float16, layoutName))
      let spec = ModelSpec(capacity: 8, vocabSize: 50, prefillRows: 4, identity: "saved")
      var seen: [Data] = []
      let package = FakePackage { _, inputs in
        seen.append(inputs["key_cache_0"]!.dense + inputs["value_cache_0"]!.dense)
        let outputs = ["new_key_0", "new_value_0"].reduce(into: [:]) {
          $0[$1] = FakeTensor(.float16, layout.cacheShape(4, layer: 0))
        }
        for name in outputs.keys { outputs[name]!.dense = Data((0..<outputs[name]!.dense.count).map { UInt8($0 % 251) }) }
        return outputs
      }
      let one = try PackageBackend(package, spec, layout), other = try PackageBackend(package, spec, layout)
      try prefill(one, 4)
      try commit(one, [0, 1, 2])
      try one.truncate(to: 2)
      try prefill(one, 1)
      let bytes = one.byteCount(length: 2)!
      XCTAssertEqual(bytes, 2 * 2 * 2 * 3 * 2)  // two caches, two rows, two heads of three numbers, two bytes
      let saved = try written(one, 2)
      XCTAssertEqual(saved.count, bytes)
      XCTAssertNotEqual(saved, Data(count: bytes))
      try read(other, saved, 2)
      XCTAssertEqual(try written(other, 2), saved)
      try commit(one, [0])
      try prefill(other, 1)
      try commit(other, [0])
      try other.truncate(to: 3)
      XCTAssertThrowsError(try commit(other, [0]))  // forgotten by truncate
    }
  }

  func testCachesOfALayerWithAWindowAreRingBuffers() throws {
    for layoutName in ["plain", "ane"] {
      let layout = try PackageLayout(metadata: metadata(.float16, layoutName, window: "2", positions: "[4]"))
      let spec = ModelSpec(capacity: 12, vocabSize: 50, prefillRows: 3, identity: "ring")
      var lengths: [Data] = []
      let package = FakePackage { _, inputs in
        XCTAssertEqual(inputs["key_cache_0"]!.shape, layout.cacheShape(4, layer: 0))
        XCTAssertEqual(inputs["mask"]!.shape, layout.maskShape(3, capacity: 12))
        lengths.append(inputs["cache_length"]!.dense)
        return ["new_key_0", "new_value_0"].reduce(into: [:]) { outputs, name in
          let rows = FakeTensor(.float16, layout.cacheShape(3, layer: 0))
          rows.dense = Data(repeating: UInt8(lengths.count), count: rows.dense.count)
          outputs[name] = rows
        }
      }
      let one = try PackageBackend(package, spec, layout), other = try PackageBackend(package, spec, layout)
      for _ in 0..<2 {
        try prefill(one, 3)
        try commit(one, [0, 1, 2])
      }
      XCTAssertEqual(lengths, [0, 3].map { [Int32($0)].withUnsafeBytes { Data($0) } })
      let row = 2 * 3 * 2, rows = [2, 2, 1, 2].reduce(Data()) { $0 + Data(repeating: $1, count: row) }  // positions 4, 5, 2, 3
      let saved = try written(one, 6)
      XCTAssertEqual(saved, [Int64(2)].withUnsafeBytes { Data($0) } + rows + rows)
      XCTAssertEqual(one.byteCount(length: 6), saved.count)
      XCTAssertEqual(one.byteCount(length: 3), 8 + 2 * 3 * row)
      try read(other, saved, 6)
      XCTAssertEqual(try written(other, 6), saved)
      for backend in [one, other] {
        XCTAssertEqual([6, 5, 4, 3, 0].map(backend.truncatable), [6, 5, 4, 0, 0])
        XCTAssertThrowsError(try backend.truncate(to: 3)) {
          XCTAssert(($0 as! StreamFuseError).message.contains("a sliding window or convolution of 2 positions"), "\($0)")
        }
        XCTAssertThrowsError(try written(backend, 3))
        try backend.truncate(to: 4)
        try backend.truncate(to: 0)
      }
      try prefill(one, 2)
      try commit(one, [0, 1])
      XCTAssertEqual(one.truncatable(1), 1)
      XCTAssertThrowsError(try read(other, [Int64(5)].withUnsafeBytes { Data($0) } + rows + rows, 6))
    }
  }

  func testCachesOfLayersMayHaveOtherNumbersOfHeads() throws {
    for layoutName in ["plain", "ane"] {
      var facts = metadata(.float16, layoutName)
      facts["streamfuse.num_layers"] = "2"
      facts["streamfuse.kv_heads"] = "[1, 4]"
      let layout = try PackageLayout(metadata: facts)
      let spec = ModelSpec(capacity: 12, vocabSize: 50, prefillRows: 3, identity: "heads")
      var wrong: Int?
      let package = FakePackage { _, inputs in
        (0..<2).reduce(into: [:]) { outputs, layer in
          for kind in ["key", "value"] {
            XCTAssertEqual(inputs["\(kind)_cache_\(layer)"]!.shape, layout.cacheShape(12, layer: layer))
            let rows = FakeTensor(.float16, layout.cacheShape(3, layer: wrong ?? layer))
            rows.dense = Data((0..<rows.dense.count).map { UInt8($0 + layer) })
            outputs["new_\(kind)_\(layer)"] = rows
          }
        }
      }
      let one = try PackageBackend(package, spec, layout), other = try PackageBackend(package, spec, layout)
      try prefill(one, 3)
      try commit(one, [0, 1, 2])
      let saved = try written(one, 3)
      XCTAssertEqual(saved.count, 2 * 3 * (1 + 4) * 3 * 2)  // two caches, three rows, heads, numbers, bytes
      XCTAssertEqual(one.byteCount(length: 3), saved.count)
      try read(other, saved, 3)
      XCTAssertEqual(try written(other, 3), saved)
      wrong = 1
      XCTAssertThrowsError(try prefill(other, 3)) {  // whose first pass it is
        XCTAssert(($0 as! StreamFuseError).message.contains("returned new_key_0 as float16"), "\($0)")
      }
    }
  }

  func testRowsThatWaitToBeCommittedAreNotThoseOfAnotherSequence() throws {
    let layout = try PackageLayout(metadata: metadata(.float16))
    let spec = ModelSpec(capacity: 8, vocabSize: 50, prefillRows: 4, identity: "two")
    var passes = UInt8(0)
    let package = FakePackage { _, _ in
      passes += 1
      return newRows(.float16, 4).mapValues { rows in
        rows.dense = Data(repeating: passes, count: rows.dense.count)
        return rows
      }
    }
    let both = try (0..<2).map { _ in try PackageBackend(package, spec, layout) }
    for _ in 0..<2 {  // the first passes are in memory of the package's
      for backend in both { try prefill(backend, 1) }
      for backend in both { try commit(backend, [0]) }
    }
    let saved = try both.map { backend in
      let data = try written(backend, 2)
      return data.prefix(data.count / 2)  // two rows of keys
    }
    let row = saved[0].count / 2
    for (data, passes) in zip(saved, [[1, 3], [2, 4]] as [[UInt8]]) {
      XCTAssertEqual(data, Data(repeating: passes[0], count: row) + Data(repeating: passes[1], count: row))
    }
  }

  func testAPackageThatIsNotOursSaysWhatIsMissing() {
    XCTAssertThrowsError(try PackageLayout(metadata: [:])) {
      XCTAssert(($0 as! StreamFuseError).message.contains("streamfuse.num_layers"))
    }
    XCTAssertThrowsError(try PackageLayout(metadata: metadata(.float16, "round"))) {
      XCTAssert(($0 as! StreamFuseError).message.contains("round"))
    }
    XCTAssertThrowsError(try PackageLayout(metadata: metadata(.float16, window: "2"))) {
      XCTAssert(($0 as! StreamFuseError).message.contains("streamfuse.cache_positions"))
    }
    for positions in ["[0]", "[4, 4]", "[]", "[true]"] {
      XCTAssertThrowsError(try PackageLayout(metadata: metadata(.float16, window: "2", positions: positions))) {
        XCTAssert(($0 as! StreamFuseError).message.contains("\(positions) for streamfuse.cache_positions"), "\($0)")
      }
    }
    let wrong = [("num_layers", "0"), ("num_msa_layers", "2"), ("head_dim", "9000000000"), ("sliding_window", "0")]
    for (key, text) in wrong + ["[-1]", "[2, 2]", "[70000]"].map({ ("kv_heads", $0) }) {
      var facts = metadata(.float16, positions: "[4]")
      facts["streamfuse.\(key)"] = text
      XCTAssertThrowsError(try PackageLayout(metadata: facts)) {
        XCTAssert(($0 as! StreamFuseError).message.contains("\(text) for streamfuse.\(key)"), "\($0)")
      }
    }
    let small = ModelSpec(capacity: 8, vocabSize: 50, prefillRows: 2, identity: "ring")
    for (window, positions, isValid) in [(2, 2, false), (2, 9, false), (9, 7, false), (2, 3, true), (2, 8, true), (9, 8, true)] {
      let facts = metadata(.float16, window: "\(window)", positions: "[\(positions)]")
      let engine = { try PackageEngine(runner: FakePackage { _, _ in [:] }, spec: small, layout: PackageLayout(metadata: facts)) }
      guard !isValid else {
        XCTAssertNoThrow(try engine())
        continue
      }
      XCTAssertThrowsError(try engine()) {
        XCTAssert(($0 as! StreamFuseError).message.contains("\(positions) in streamfuse.cache_positions"), "\($0)")
      }
    }
    let spec = ModelSpec(
      capacity: 8, vocabSize: 50, prefillRows: 2,
      verify: [VerifyMethod(name: "verify_4", rows: 4, keep: 4, carrying: 0)], identity: "less")
    XCTAssertThrowsError(
      try PackageEngine(runner: FakePackage { _, _ in [:] }, spec: spec, layout: PackageLayout(metadata: metadata(.float16)))
    ) { XCTAssert(($0 as! StreamFuseError).message.contains("verify_4")) }
  }

  func testAMissingOutputIsNamed() async throws {
    let spec = ModelSpec(capacity: 8, vocabSize: 50, prefillRows: 2, identity: "missing")
    let layout = try PackageLayout(metadata: metadata(.float16))
    let engine = try PackageEngine(runner: FakePackage { _, _ in [:] }, spec: spec, layout: layout)
    XCTAssertEqual(engine.cacheBytes, 2 * 8 * 2 * 3 * 2)  // two caches, eight rows, two heads of three numbers, two bytes
    let model = try Model(spec: spec, engine: engine)
    do {
      _ = try await model.session().stream(.tokens([1, 2])).response()
      XCTFail("nothing was thrown")
    } catch let error as StreamFuseError {
      XCTAssert(error.message.contains("prefill has no output new_key_0"), error.message)
    }
  }

  func testCoreMLIsWhereAppleIs() async throws {
    #if !canImport(CoreML) && !FAKE_CORE_ML
      let spec = ModelSpec(capacity: 8, vocabSize: 50, prefillRows: 2, identity: "none")
      do {
        _ = try await openPackage(URL(filePath: "model.mlpackage"), spec: spec)
        XCTFail("nothing was thrown")
      } catch let error as StreamFuseError {
        XCTAssert(error.message.contains("needs Core ML"), error.message)
      }
    #endif
  }

  func testTheBestTokenIsTheFirstOfTheGreatestInAllChunksAndLayouts() throws {
    for floats in [ElementType.float16, .float32] {
      // Two rows of seven tokens: [2, 7], and [1, 4, 1, 2] with [1, 3, 1, 2].
      let rows: [[Float]] = [[1, -2, 5, 5, 0, 5, 4], [-3, -4, -5, -6, -7, -2, -2]]
      let whole = tensor(floats, [2, 7], rows.flatMap { $0 })
      func chunk(_ tokens: Range<Int>) -> FakeTensor {
        tensor(floats, [1, tokens.count, 1, 2], tokens.flatMap { token in rows.map { $0[token] } })
      }
      for outputs in [["logits": whole], ["logits_0": chunk(0..<4), "logits_1": chunk(4..<7)]] {
        let scores = try Scores(outputs, of: "verify_2", rows: 2, vocabSize: 7)
        XCTAssertEqual([scores.best(0), scores.best(1)], [2, 5])
        XCTAssertEqual(scores.read(2), rows.flatMap { $0 })
        XCTAssertThrowsError(try Scores(outputs, of: "verify_2", rows: 2, vocabSize: 8))
        XCTAssertThrowsError(try Scores(outputs, of: "verify_2", rows: 3, vocabSize: 7))
      }
    }
  }

  func testRowsOfAnotherTypeOrNumberThanTheLayoutSaysAreRefused() throws {
    let spec = ModelSpec(capacity: 8, vocabSize: 50, prefillRows: 2, identity: "unfit")
    let layout = try PackageLayout(metadata: metadata(.float16))
    for (floats, rows) in [(ElementType.float16, 1), (.float32, 2), (.float16, 2)] {
      let backend = try PackageBackend(FakePackage { _, _ in newRows(floats, rows) }, spec, layout)
      let run = { try pass(backend, "prefill", 2) }
      if floats == .float16, rows == 2 {
        XCTAssertNoThrow(try run())
      } else {
        XCTAssertThrowsError(try run()) { XCTAssertEqual(($0 as? StreamFuseError)?.code, .badProgram) }
      }
    }
  }

  func testARowThatADamagedPackageNamesTwiceOrTooFewNumbersDoNotEndTheApp() throws {
    let spec = ModelSpec(
      capacity: 8, vocabSize: 50, prefillRows: 2,
      verify: [VerifyMethod(name: "verify_2", rows: 2, keep: 2, carrying: 0)], identity: "twice")
    let layout = try PackageLayout(metadata: metadata(.float16, methods: "[\"prefill\", \"decode\", \"verify_2\"]"))
    for best in [[Int32(7), 9], [7]] {
      let package = FakePackage { _, _ in
        newRows(.float16, 2).merging(["kept": integers([0, 0]), "best": integers(best)]) { $1 }
      }
      let backend = try PackageBackend(package, spec, layout)
      let run = { try pass(backend, "verify_2", 2) }
      if best.count == 2 { XCTAssertEqual(try run().survivors, 2) } else { XCTAssertThrowsError(try run()) }
    }
  }

  func testNoSourceNamesFloat16WhichIntelMacsLack() throws {
    let sources = URL(filePath: #filePath).appending(path: "../../../Sources").standardizedFileURL
    let files = try XCTUnwrap(FileManager.default.enumerator(at: sources, includingPropertiesForKeys: nil))
    var seen = 0
    for case let file as URL in files where file.pathExtension == "swift" {
      seen += 1
      XCTAssertFalse(try String(contentsOf: file, encoding: .utf8).contains("Float16"), file.lastPathComponent)
    }
    XCTAssertGreaterThan(seen, 20)
  }
}

/// One prefill pass over so many rows.
private func prefill(_ backend: PackageBackend, _ n: Int) throws { _ = try pass(backend, "prefill", n) }

/// One pass over so many rows.
private func pass(_ backend: PackageBackend, _ method: String, _ n: Int) throws -> sf_results {
  let zeros = [Int64](repeating: 0, count: n), all = [UInt8](repeating: 1, count: n * n)
  return try zeros.withUnsafeBufferPointer { zeros in
    try all.withUnsafeBufferPointer {
      try backend.run(method, ids: zeros, positions: zeros, ancestors: $0, wantLogits: false)
    }
  }
}

/// Commits rows of the last pass.
private func commit(_ backend: PackageBackend, _ rows: [Int32]) throws {
  try rows.withUnsafeBufferPointer { try backend.commit(rows: $0) }
}

/// New keys and values of one layer, two heads of three numbers.
private func newRows(_ type: ElementType, _ rows: Int) -> [String: FakeTensor] {
  ["new_key_0": FakeTensor(type, [rows, 2, 3]), "new_value_0": FakeTensor(type, [rows, 2, 3])]
}

/// The first rows as the backend saves them.
private func written(_ backend: PackageBackend, _ length: Int) throws -> Data {
  var saved = Data()
  try backend.save(length: length) { saved.append(contentsOf: $0) }
  return saved
}

/// Reads saved rows, all of them.
private func read(_ backend: PackageBackend, _ saved: Data, _ length: Int) throws {
  var rest = saved
  try backend.load(length: length) { rows in
    rows.copyBytes(from: rest.prefix(rows.count))
    rest = rest.dropFirst(rows.count)
  }
  XCTAssertEqual(rest.count, 0)
}

/// A tensor of these small whole numbers, as floats of that type.
private func tensor(_ floats: ElementType, _ shape: [Int], _ numbers: [Float]) -> FakeTensor {
  let tensor = FakeTensor(floats, shape)
  let halves: [Float: UInt16] = [
    0: 0, 1: 0x3C00, 4: 0x4400, 5: 0x4500, -2: 0xC000, -3: 0xC200, -4: 0xC400, -5: 0xC500, -6: 0xC600, -7: 0xC700,
  ]
  tensor.dense =
    floats == .float16 ? numbers.map { halves[$0]! }.withUnsafeBytes { Data($0) } : numbers.withUnsafeBytes { Data($0) }
  return tensor
}

/// A tensor of token ids.
private func integers(_ numbers: [Int32]) -> FakeTensor {
  let tensor = FakeTensor(.int32, [numbers.count])
  tensor.dense = numbers.withUnsafeBytes { Data($0) }
  return tensor
}

/// The metadata of a package of one layer.
private func metadata(
  _ floats: ElementType, _ layout: String = "plain", methods: String = "[\"prefill\", \"decode\"]",
  window: String? = nil, positions: String? = nil
) -> [String: String] {
  var fields = [
    "num_layers": "1", "num_msa_layers": "0", "kv_heads": "[2]", "head_dim": "3", "layout": layout,
    "dtype": "\(floats)", "methods": methods, "compute_units": "cpu_and_ne",
  ]
  fields["sliding_window"] = window
  fields["cache_positions"] = positions
  return Dictionary(uniqueKeysWithValues: fields.map { ("streamfuse.\($0)", $1) })
}
