import FakeCoreML
import Foundation
import StreamFuseCore
import StreamFuse
import XCTest

/// What tools/record_coreml.py wrote of one bundle: `make ios` makes it.
final class Recording: @unchecked Sendable {  // one session at a time
  /// One text with its settings.
  struct Text: Decodable {
    let prompt, tokens: [Int]
    let config: GenerationConfig
  }
  /// One pass.
  struct Call: Decodable {
    let method: String
    let inputs, outputs: [String: Recorded]
  }
  /// calls.json.
  private struct File: Decodable {
    let metadata: [String: String]
    let texts: [Text]
    let calls: [Call]
  }

  let bundle: URL
  let metadata: [String: String]
  let texts: [Text]
  let calls: Calls
  /// The numbers of all tensors.
  private let data: Data

  init(_ kind: String) throws {
    let folder = URL(filePath: #filePath).appending(path: "../../../../../build/ios/coreml/\(kind)").standardizedFileURL
    let read = try XCTUnwrap(
      FileManager.default.contents(atPath: folder.appending(path: "calls.json").path), "\(folder.path) is missing: run make ios")
    let file = try JSONDecoder().decode(File.self, from: read)
    (metadata, texts, calls) = (file.metadata, file.texts, Calls(file.calls))
    data = try Data(contentsOf: folder.appending(path: "data.bin"))
    bundle = folder.appending(path: "bundle")
  }

  /// The next pass: its inputs must be these.
  func answer(_ method: String, _ inputs: [String: MLMultiArray]) throws -> [String: MLMultiArray] {
    let call = try calls.next()
    XCTAssertEqual(method, call.method)
    XCTAssertEqual(Set(inputs.keys), Set(call.inputs.keys))
    for (name, expected) in call.inputs {
      XCTAssertEqual(inputs[name]?.shape.map(\.intValue), expected.shape, name)
      XCTAssertEqual(inputs[name]?.dataType, expected.type, name)
      XCTAssertEqual(inputs[name]?.dense, expected.bytes(of: data), "\(name) of pass \(calls.count), \(method)")
    }
    return try call.outputs.mapValues { try $0.array(of: data) }
  }
}

/// A tensor in data.bin.
struct Recorded: Decodable {
  let dtype: String
  let shape: [Int]
  let offset: Int

  var type: MLMultiArrayDataType { ["float16": .float16, "float32": .float32, "int32": .int32][dtype]! }

  func bytes(of data: Data) -> Data { data.subdata(in: offset..<(offset + shape.reduce(1, *) * (type == .float16 ? 2 : 4))) }

  /// As Core ML hands it out: half floats in a surface with padded rows.
  func array(of data: Data) throws -> MLMultiArray {
    let sizes = shape.map { NSNumber(value: $0) }
    var surface: CVPixelBuffer?
    if type == .float16 {
      let height = shape.dropLast().reduce(1, *)
      CVPixelBufferCreate(nil, shape.last ?? 1, height, kCVPixelFormatType_OneComponent16Half, nil, &surface)
    }
    let array = try surface.map { MLMultiArray(pixelBuffer: $0, shape: sizes) } ?? MLMultiArray(shape: sizes, dataType: type)
    array.dense = bytes(of: data)
    return array
  }
}

/// Recorded passes, one after the other.
final class Calls {
  struct Refused: LocalizedError { let errorDescription: String? }
  let all: [Recording.Call]
  private(set) var count = 0
  private var refused: Int?

  init(_ all: [Recording.Call]) { self.all = all }

  /// Makes one pass fail, whenever it is tried.
  func refuse(_ call: Int) { refused = call }

  /// Begins again, and refuses nothing.
  func rewind() { (count, refused) = (0, nil) }

  func next() throws -> Recording.Call {
    if count == refused { throw Refused(errorDescription: "the test refuses") }
    guard count < all.count else { throw Refused(errorDescription: "one pass more than Python ran") }
    defer { count += 1 }
    return all[count]
  }
}
