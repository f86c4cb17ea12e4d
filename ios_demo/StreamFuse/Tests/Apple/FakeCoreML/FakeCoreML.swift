// Declarations of Core ML and Core Video, as far as CoreMLRunner.swift uses them and as Apple's documentation has them, so
// that Linux compiles and runs that file. A compiled package is a folder with a copy of `metadata.json`; a test sets in
// `CoreMLWitness` the outputs of its functions, and reads there what was compiled and loaded.
import Foundation
import Synchronization

/// What happened to packages, and the outputs of their functions, by the name of the package.
public enum CoreMLWitness {
  /// What happened to one package.
  public struct Events: Sendable {
    /// How often it was compiled, and where Core ML put the results.
    public var compiled = 0
    public var made: [URL] = []
    /// The functions that were loaded, in order, with their compute units.
    public var loaded: [String] = []
    /// Functions that are loaded now, and the most that ever were.
    public var alive = 0, most = 0
    /// Outputs that were written into memory of the caller's, and functions that refused to do so.
    public var backed = 0
    public var refused: [String] = []
    /// Whether functions refuse such memory.
    public var refuses = false
    /// The outputs of its functions.
    public var answer: (@Sendable (_ function: String, _ inputs: [String: MLMultiArray]) throws -> [String: MLMultiArray])?
  }
  static let all = Mutex([String: Events]())

  /// The events of a package.
  public static func events(_ package: String) -> Events { all.withLock { $0[package] ?? Events() } }
  /// Sets the outputs of its functions.
  public static func answer(
    _ package: String,
    _ answer: @escaping @Sendable (_ function: String, _ inputs: [String: MLMultiArray]) throws -> [String: MLMultiArray]
  ) { change(package) { $0.answer = answer } }
  /// Makes its functions refuse memory for their outputs.
  public static func refuseOutputBackings(_ package: String) { change(package) { $0.refuses = true } }
  static func change(_ package: String, _ body: (inout Events) -> Void) {
    all.withLock { body(&$0[package, default: Events()]) }
  }
}

public enum MLComputeUnits: Int, Sendable { case cpuOnly, cpuAndGPU, all, cpuAndNeuralEngine }
public final class MLModelConfiguration {
  public init() {}
  public var functionName: String?
  public var computeUnits = MLComputeUnits.all
}
public final class MLPredictionOptions {
  public init() {}
  public var outputBackings: [String: Any] = [:]
}
public struct MLModelMetadataKey: Hashable, Sendable { public static let creatorDefinedKey = MLModelMetadataKey() }
public final class MLModelDescription {
  public let metadata: [MLModelMetadataKey: Any]
  init(_ fields: [String: String]) { metadata = [.creatorDefinedKey: fields] }
}

/// What a package holds in the fake, in `metadata.json`: its name for `CoreMLWitness`, and its metadata.
public struct FakePackageFolder: Codable {
  let package: String
  let metadata: [String: String]
  public init(package: String, metadata: [String: String]) { (self.package, self.metadata) = (package, metadata) }
  public func write(to folder: URL) throws {
    try FileManager.default.createDirectory(at: folder, withIntermediateDirectories: true)
    try JSONEncoder().encode(self).write(to: folder.appending(path: "metadata.json"))
  }
}

public final class MLModel {
  private let function, package: String
  public let modelDescription: MLModelDescription

  public class func compileModel(at package: URL) async throws -> URL {
    let made = FileManager.default.temporaryDirectory.appending(path: "\(UUID().uuidString).mlmodelc")
    try FileManager.default.createDirectory(at: made, withIntermediateDirectories: true)
    try FileManager.default.copyItem(at: package.appending(path: "metadata.json"), to: made.appending(path: "metadata.json"))
    CoreMLWitness.change(package.path) {
      $0.compiled += 1
      $0.made.append(made)
    }
    return made
  }

  public class func load(contentsOf compiled: URL, configuration: MLModelConfiguration) async throws -> MLModel {
    let data = try Data(contentsOf: compiled.appending(path: "metadata.json"))
    return MLModel(try JSONDecoder().decode(FakePackageFolder.self, from: data), configuration)
  }

  private init(_ description: FakePackageFolder, _ configuration: MLModelConfiguration) {
    let function = configuration.functionName ?? "main"
    (self.function, package) = (function, description.package)
    modelDescription = MLModelDescription(description.metadata)
    CoreMLWitness.change(package) {
      $0.loaded.append("\(function) on \(configuration.computeUnits)")
      $0.alive += 1
      $0.most = max($0.most, $0.alive)
    }
  }

  deinit { CoreMLWitness.change(package) { $0.alive -= 1 } }

  struct Refused: LocalizedError { let errorDescription: String? = "output backings are refused" }

  /// Writes into the backings of its outputs, which must be of their types and shapes.
  public func prediction(from input: any MLFeatureProvider, options: MLPredictionOptions) throws -> any MLFeatureProvider {
    if CoreMLWitness.events(package).refuses {
      CoreMLWitness.change(package) { $0.refused.append(function) }
      throw Refused()
    }
    let found = try prediction(from: input)
    let outputs = try found.featureNames.reduce(into: [String: MLFeatureValue]()) { outputs, name in
      let array = found.featureValue(for: name)!.multiArrayValue!
      guard let backing = options.outputBackings[name] as! MLMultiArray? else {
        return outputs[name] = MLFeatureValue(multiArray: array)
      }
      guard backing.shape == array.shape, backing.dataType == array.dataType else { throw Refused() }
      backing.dense = array.dense
      CoreMLWitness.change(package) { $0.backed += 1 }
      outputs[name] = MLFeatureValue(multiArray: backing)
    }
    return try MLDictionaryFeatureProvider(dictionary: outputs)
  }

  public func prediction(from input: any MLFeatureProvider) throws -> any MLFeatureProvider {
    let given = input.featureNames.reduce(into: [String: MLMultiArray]()) { $0[$1] = input.featureValue(for: $1)?.multiArrayValue }
    let found = try CoreMLWitness.events(package).answer?(function, given) ?? [:]
    return try MLDictionaryFeatureProvider(dictionary: found.mapValues { MLFeatureValue(multiArray: $0) })
  }
}

public protocol MLFeatureProvider {
  var featureNames: Set<String> { get }
  func featureValue(for name: String) -> MLFeatureValue?
}
public final class MLDictionaryFeatureProvider: MLFeatureProvider {
  private let values: [String: Any]
  public init(dictionary: [String: Any]) throws { values = dictionary }
  public var featureNames: Set<String> { Set(values.keys) }
  public func featureValue(for name: String) -> MLFeatureValue? { values[name] as? MLFeatureValue }
}
public final class MLFeatureValue {
  public let multiArrayValue: MLMultiArray?
  public init(multiArray: MLMultiArray) { multiArrayValue = multiArray }
}

public enum MLMultiArrayDataType: Int, Sendable { case double = 65600, float32 = 65568, float16 = 65552, int32 = 131104 }
/// Its last axis is padded where it lies in a pixel buffer.
public final class MLMultiArray {
  public let shape: [NSNumber]
  public let dataType: MLMultiArrayDataType
  private let strides: [Int]
  private let memory: UnsafeMutableRawBufferPointer
  private let owner: CVPixelBuffer?

  public convenience init(shape: [NSNumber], dataType: MLMultiArrayDataType) throws {
    let line = shape.last?.intValue ?? 1, bytes = dataType == .float16 ? 2 : dataType == .double ? 8 : 4
    let lines = shape.dropLast().reduce(1) { $0 * $1.intValue }
    let memory = UnsafeMutableRawBufferPointer.allocate(byteCount: line * lines * bytes, alignment: 64)
    memory.initializeMemory(as: UInt8.self, repeating: 0xA5)
    self.init(shape, dataType, line: line, memory, owner: nil)
  }
  public convenience init(pixelBuffer: CVPixelBuffer, shape: [NSNumber]) {
    self.init(shape, .float16, line: pixelBuffer.bytesPerRow / 2, pixelBuffer.memory, owner: pixelBuffer)
  }
  private init(
    _ shape: [NSNumber], _ type: MLMultiArrayDataType, line: Int, _ memory: UnsafeMutableRawBufferPointer, owner: CVPixelBuffer?
  ) {
    (self.shape, dataType, self.memory, self.owner) = (shape, type, memory, owner)
    var strides = [1], step = line
    for size in shape.dropLast().reversed() {
      strides.insert(step, at: 0)
      step *= size.intValue
    }
    self.strides = strides
  }
  deinit { if owner == nil { memory.deallocate() } }

  public func withUnsafeMutableBytes<R>(_ body: (UnsafeMutableRawBufferPointer, [Int]) throws -> R) rethrows -> R {
    try body(memory, strides)
  }

  /// For tests: the elements without gaps, in the order of their indices.
  public var dense: Data {
    get { lines.reduce(into: Data()) { $0.append(contentsOf: memory[$1]) } }
    set {
      var taken = newValue.startIndex
      for line in lines {
        let target = UnsafeMutableRawBufferPointer(rebasing: memory[line])
        newValue[taken..<(taken + line.count)].withUnsafeBytes { target.copyMemory(from: $0) }
        taken += line.count
      }
    }
  }

  /// The bytes of each line along the last axis. Only the distance between lines is padded.
  private var lines: [Range<Int>] {
    let bytes = dataType == .float16 ? 2 : dataType == .double ? 8 : 4, count = (shape.last?.intValue ?? 1) * bytes
    let distance = shape.count < 2 ? count : strides[shape.count - 2] * bytes
    return (0..<shape.dropLast().reduce(1) { $0 * $1.intValue }).map { $0 * distance..<$0 * distance + count }
  }
}

public typealias CFDictionary = [String: Any]
public let kCVPixelBufferIOSurfacePropertiesKey = "IOSurfaceProperties"
public let kCVPixelFormatType_OneComponent16Half: UInt32 = 0x4C303068
public let kCVReturnSuccess: Int32 = 0
public struct CVPixelBufferLockFlags: OptionSet, Sendable {
  public let rawValue: UInt64
  public init(rawValue: UInt64) { self.rawValue = rawValue }
}
public final class CVPixelBuffer {
  let memory: UnsafeMutableRawBufferPointer
  let bytesPerRow: Int
  init(width: Int, height: Int) {
    bytesPerRow = (2 * width + 63) / 64 * 64
    memory = .allocate(byteCount: bytesPerRow * height, alignment: 64)
    memory.initializeMemory(as: UInt8.self, repeating: 0xA5)
  }
  deinit { memory.deallocate() }
}
@discardableResult public func CVPixelBufferCreate(
  _ allocator: Any?, _ width: Int, _ height: Int, _ format: UInt32, _ attributes: CFDictionary?, _ made: inout CVPixelBuffer?
) -> Int32 {
  made = width > 16_384 || height > 16_384 ? nil : CVPixelBuffer(width: width, height: height)
  return made == nil ? -6680 : kCVReturnSuccess
}
public func CVPixelBufferLockBaseAddress(_ buffer: CVPixelBuffer, _ flags: CVPixelBufferLockFlags) -> Int32 { kCVReturnSuccess }
@discardableResult public func CVPixelBufferUnlockBaseAddress(_ buffer: CVPixelBuffer, _ flags: CVPixelBufferLockFlags) -> Int32 {
  kCVReturnSuccess
}
public func CVPixelBufferGetBaseAddress(_ buffer: CVPixelBuffer) -> UnsafeMutableRawPointer? { buffer.memory.baseAddress }
public func CVPixelBufferGetBytesPerRow(_ buffer: CVPixelBuffer) -> Int { buffer.bytesPerRow }
