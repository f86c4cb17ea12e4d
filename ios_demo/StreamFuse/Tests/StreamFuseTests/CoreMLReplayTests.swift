// Core ML bundles that the exporter wrote, with a fake in MLModel's place: it holds every input to the bytes that Python's
// backend gave the emulator (tests/record_coreml.py), and answers as the emulator did. So commits, masks and layouts are
// Python's, and so is the text.
import FakePackage
import Foundation
import StreamFuse
import StreamFuseCoreML
import XCTest

final class CoreMLReplayTests: XCTestCase {
  func testThePlainLayoutInSinglePrecisionGivesPythonsBytesAndText() async throws {
    try await replay("plain-float32")
  }

  func testTheNeuralEnginesLayoutInHalfPrecisionGivesPythonsBytesAndText() async throws {
    try await replay("ane-float16-int8")
  }

  private func replay(_ kind: String) async throws {
    let folder = try made("build/ios/coreml/\(kind)")
    let record = try JSONDecoder().decode(Record.self, from: Data(contentsOf: folder.appending(path: "calls.json")))
    let data = try Data(contentsOf: folder.appending(path: "data.bin"))
    let bundle = try ModelBundle(folder: folder.appending(path: "bundle"))
    XCTAssertEqual(bundle.facts.target, "coreml")
    let layout = try PackageLayout(metadata: record.metadata)
    XCTAssertEqual(layout.channelsFirst, kind.hasPrefix("ane"))
    XCTAssertEqual(layout.computeUnits, .cpuAndNeuralEngine)

    let calls = Calls(record.calls)
    let package = FakePackage { method, inputs in
      guard let call = calls.next() else { throw StreamFuseError(.execution, "one pass more than Python ran") }
      XCTAssertEqual(method, call.method)
      XCTAssertEqual(Set(inputs.keys), Set(call.inputs.keys))
      for (name, expected) in call.inputs {
        XCTAssertEqual(inputs[name]?.shape, expected.shape, name)
        XCTAssertEqual(inputs[name]?.type, expected.type, name)
        XCTAssertEqual(inputs[name]?.dense, expected.bytes(of: data), "\(name) of pass \(calls.count), \(method)")
      }
      return call.outputs.mapValues { $0.tensor(of: data) }
    }
    let model = try Model(
      spec: bundle.spec, tables: bundle.tables(),
      engine: PackageEngine(runner: package, spec: bundle.spec, layout: layout), defaults: bundle.defaults,
      text: { _ in try bundle.makeText() })
    let session = model.session()
    for text in record.texts {
      let response = try await session.stream(.tokens(text.prompt)) { $0 = text.config }.response()
      XCTAssertEqual(response.tokens, text.tokens)
    }
    XCTAssertEqual(calls.count, record.calls.count)
  }
}

/// calls.json.
private struct Record: Decodable {
  struct Text: Decodable {
    let prompt, tokens: [Int]
    let config: GenerationConfig
  }
  let metadata: [String: String]
  let texts: [Text]
  let calls: [Call]
}

/// One pass.
private struct Call: Decodable {
  let method: String
  let inputs, outputs: [String: Recorded]
}

/// A tensor in data.bin.
private struct Recorded: Decodable {
  let dtype: String
  let shape: [Int]
  let offset: Int

  var type: ElementType { ["float16": .float16, "float32": .float32, "int32": .int32][dtype]! }

  func bytes(of data: Data) -> Data { data.subdata(in: offset..<(offset + shape.reduce(1, *) * type.bytes)) }

  func tensor(of data: Data) -> FakeTensor {
    let tensor = FakeTensor(type, shape)
    tensor.dense = bytes(of: data)
    return tensor
  }
}

/// Recorded passes, one after the other.
private final class Calls {
  private let all: [Call]
  private(set) var count = 0

  init(_ all: [Call]) { self.all = all }

  func next() -> Call? {
    defer { count += 1 }
    return count < all.count ? all[count] : nil
  }
}
