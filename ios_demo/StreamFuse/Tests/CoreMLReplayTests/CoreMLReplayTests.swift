// Core ML bundles that the exporter wrote, through CoreMLRunner.swift over declarations of Core ML's types: the functions
// hold every input to the bytes that Python's backend gave the emulator (tools/record_coreml.py), and answer as the
// emulator did. So commits, masks, layouts and strides are Python's, and so is the text.
import FakeCoreML
import Foundation
import StreamFuse
import XCTest

@testable import StreamFuseCoreML

final class CoreMLReplayTests: XCTestCase {
  private let root = FileManager.default.temporaryDirectory.appending(path: UUID().uuidString)

  override func tearDown() { try? FileManager.default.removeItem(at: root) }

  func testThePlainLayoutInSinglePrecisionGivesPythonsBytesAndText() async throws {
    try await replay("plain-float32")
  }

  func testTheNeuralEnginesLayoutInHalfPrecisionGivesPythonsBytesAndText() async throws {
    try await replay("ane-float16-int8")
  }

  func testCachesThatAreRingBuffersGivePythonsBytesAndText() async throws { try await replay("ane-float16-rings") }

  func testConvolutionsWhoseCachesHaveMoreHeadsGivePythonsBytesAndText() async throws {
    try await replay("plain-float16-convolutions")
  }

  func testAPassThatCoreMLRefusesEndsTheAnswerWithItsReasonAndTheNextSessionGivesPythonsText() async throws {
    let recording = try Recording("ane-float16-int8"), text = recording.texts[0]
    let refused = 3
    recording.calls.refuse(refused)
    let model = try await model(recording)
    do {
      _ = try await model.session().stream(.tokens(text.prompt)) { $0 = text.config }.response()
      XCTFail("nothing was thrown")
    } catch let error as StreamFuseError {
      XCTAssertEqual(error.code, .execution)
      let method = recording.calls.all[refused].method
      XCTAssert(error.message.contains("Core ML cannot run \(method): the test refuses"), error.message)
    }
    XCTAssertEqual(recording.calls.count, refused)
    recording.calls.rewind()
    let response = try await model.session().stream(.tokens(text.prompt)) { $0 = text.config }.response()
    XCTAssertEqual(response.tokens, text.tokens)
  }

  func testATrimmedSessionHasNewCachesAndPythonsTextAgain() async throws {
    let recording = try Recording("ane-float16-int8"), text = recording.texts[0]
    let session = try await model(recording).session()
    for _ in 0..<2 {
      let response = try await session.stream(.tokens(text.prompt)) { $0 = text.config }.response()
      XCTAssertEqual(response.tokens, text.tokens)
      try await session.trim()
      recording.calls.rewind()
    }
  }

  private func replay(_ kind: String) async throws {
    let recording = try Recording(kind)
    let loaded = try await model(recording)
    XCTAssertEqual(try JSONDecoder().decode(Manifest.self, from: loaded.manifest).target, "coreml")
    let layout = try PackageLayout(metadata: recording.metadata)
    XCTAssertEqual(layout.channelsFirst, kind.hasPrefix("ane"))
    XCTAssertEqual(layout.computeUnits, .cpuAndNeuralEngine)
    let session = loaded.session()
    for text in recording.texts {
      let response = try await session.stream(.tokens(text.prompt)) { $0 = text.config }.response()
      XCTAssertEqual(response.tokens, text.tokens)
    }
    XCTAssertEqual(recording.calls.count, recording.calls.all.count)
  }

  /// The bundle's model, whose package answers from the recording.
  private func model(_ recording: Recording) async throws -> Model {
    let package = root.appending(path: "model.mlpackage"), compiled = root.appending(path: "compiled")
    try FakePackageFolder(package: package.path, metadata: recording.metadata).write(to: package)
    CoreMLWitness.answer(package.path) { try recording.answer($0, $1) }
    return try await StreamFuse.load(from: recording.bundle) {
      $0.costFolder = nil
    } engine: { spec, _ in
      try await openPackage(package, spec: spec, compiled: compiled)
    }
  }
}
