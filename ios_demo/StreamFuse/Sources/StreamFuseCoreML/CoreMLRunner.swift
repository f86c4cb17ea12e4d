// The one file that names Core ML's own types. Nobody could compile it where it was written (no Mac); what it does not
// do is in the other files of this folder, which Linux compiles and tests.
#if canImport(CoreML)
  import CoreML
  import CoreVideo
  import StreamFuseCore

  /// Core ML's memory.
  private final class CoreMLTensor: Tensor {
    /// Core ML's array.
    let array: MLMultiArray
    /// The same, as functions take it.
    let value: MLFeatureValue
    /// The type of its elements.
    let type: ElementType

    /// The array of an input or output; other types than these have no place in a package.
    init(_ array: MLMultiArray) throws {
      switch array.dataType {
      case .float16: type = .float16
      case .float32: type = .float32
      case .int32: type = .int32
      default: throw StreamFuseError(.badProgram, "the package has a tensor of type \(array.dataType.rawValue)")
      }
      self.array = array
      value = MLFeatureValue(multiArray: array)
    }

    /// Its sizes.
    var shape: [Int] { array.shape.map(\.intValue) }

    /// Gives the memory to `body`.
    func access<Result>(_ body: (UnsafeMutableRawPointer, _ strides: [Int]) throws -> Result) rethrows -> Result {
      try array.withUnsafeMutableBytes { bytes, strides in try body(bytes.baseAddress!, strides) }
    }
  }

  /// The functions of a package, loaded by Core ML.
  final class CoreMLRunner: PackageRunner, @unchecked Sendable {  // predictions take turns
    /// What makes a pass cost differently.
    let device: String
    /// The loaded functions; Core ML shares their weights.
    private let functions: [String: MLModel]
    /// One prediction at a time: a loaded function is not for two threads.
    private let turn = NSLock()

    /// Keeps loaded functions.
    private init(_ functions: [String: MLModel], device: String) {
      self.functions = functions
      self.device = device
    }

    /// Compiles the package where `kept` has no compiled one of this bundle, and loads its functions.
    static func open(
      _ package: URL, identity: String, units: ComputeUnits?, keptIn kept: URL?
    ) throws -> (CoreMLRunner, PackageLayout) {
      let compiled = try compile(package, identity, kept)
      func load(_ method: String, _ units: ComputeUnits) throws -> MLModel {
        let configuration = MLModelConfiguration()
        configuration.functionName = method
        configuration.computeUnits =
          switch units {
          case .all: .all
          case .cpuAndNeuralEngine: .cpuAndNeuralEngine
          case .cpuAndGPU: .cpuAndGPU
          case .cpuOnly: .cpuOnly
          }
        return try MLModel(contentsOf: compiled, configuration: configuration)
      }
      // Every function carries the package's metadata; `streams` or `decode` on the CPU is the fastest to ask.
      let said = try load("decode", .cpuOnly).modelDescription.metadata[.creatorDefinedKey] as? [String: String]
      let layout = try PackageLayout(metadata: said ?? [:])
      let chosen = units ?? layout.computeUnits
      let functions = try Dictionary(uniqueKeysWithValues: layout.methods.map { ($0, try load($0, chosen)) })
      return (CoreMLRunner(functions, device: "\(PackageEngine.machine), Core ML on \(chosen.rawValue)"), layout)
    }

    /// Memory that functions read without copying it: a surface for half floats, which is what the Neural Engine takes.
    func makeTensor(_ type: ElementType, _ shape: [Int]) throws -> any Tensor {
      let sizes = shape.map { NSNumber(value: $0) }
      if type == .float16, let surface = Self.surface(width: shape.last ?? 1, height: shape.dropLast().reduce(1, *)) {
        return try CoreMLTensor(MLMultiArray(pixelBuffer: surface, shape: sizes))
      }
      let array = try MLMultiArray(
        shape: sizes, dataType: type == .float16 ? .float16 : type == .float32 ? .float32 : .int32)
      array.withUnsafeMutableBytes { bytes, _ in _ = memset(bytes.baseAddress!, 0, bytes.count) }
      return try CoreMLTensor(array)
    }

    /// Runs a function.
    func predict(_ method: String, _ inputs: [String: any Tensor]) throws -> [String: any Tensor] {
      guard let function = functions[method] else {
        throw StreamFuseError(.badProgram, "the package has no function \(method)")
      }
      let features = try MLDictionaryFeatureProvider(
        dictionary: inputs.mapValues { ($0 as! CoreMLTensor).value })  // they are all from makeTensor
      let found = try turn.withLock { try function.prediction(from: features) }
      return try found.featureNames.reduce(into: [:]) { outputs, name in
        if let array = found.featureValue(for: name)?.multiArrayValue { outputs[name] = try CoreMLTensor(array) }
      }
    }

    /// A surface of zeros, or nil where the sizes are too large for one.
    private static func surface(width: Int, height: Int) -> CVPixelBuffer? {
      var made: CVPixelBuffer?
      let asked = [kCVPixelBufferIOSurfacePropertiesKey: [:] as CFDictionary] as CFDictionary
      CVPixelBufferCreate(nil, width, height, kCVPixelFormatType_OneComponent16Half, asked, &made)
      guard let made, CVPixelBufferLockBaseAddress(made, []) == kCVReturnSuccess else { return nil }
      memset(CVPixelBufferGetBaseAddress(made)!, 0, CVPixelBufferGetBytesPerRow(made) * height)
      CVPixelBufferUnlockBaseAddress(made, [])
      return made
    }

    /// The compiled package, which is kept under the bundle's identity.
    private static func compile(_ package: URL, _ identity: String, _ folder: URL?) throws -> URL {
      let kept = folder?.appending(path: identity.prefix(64) + ".mlmodelc")
      if let kept, FileManager.default.fileExists(atPath: kept.path) { return kept }
      let made = try MLModel.compileModel(at: package)
      guard let kept, let folder else { return made }
      try FileManager.default.createDirectory(at: folder, withIntermediateDirectories: true)
      try FileManager.default.moveItem(at: made, to: kept)
      return kept
    }
  }
#endif
