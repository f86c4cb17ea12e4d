// The one file that names Core ML's own types. There was no Mac where it was written: Linux compiles and tests it over
// declarations of them (Tests/Apple/FakeCoreML), and what needs none of them is in the other files of this folder.
#if canImport(CoreML) || FAKE_CORE_ML
  #if canImport(CoreML)
    import CoreML
    import CoreVideo
  #else
    import FakeCoreML
  #endif
  import Foundation
  import StreamFuseCore

  /// Core ML's memory.
  private final class CoreMLTensor: Tensor {
    /// Core ML's array.
    let array: MLMultiArray
    /// The same, as functions take it.
    let value: MLFeatureValue
    /// The type of its elements.
    let type: ElementType

    /// The array of an input or output; a package uses no other types than these.
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

  /// A compiled package that is not kept: deleted with the functions, or when they do not load.
  private final class TemporaryPackage: Sendable {
    private let place: URL

    /// Owns the folder.
    init(_ place: URL) { self.place = place }

    deinit { try? FileManager.default.removeItem(at: place) }
  }

  /// The functions of a package, loaded by Core ML.
  final class CoreMLRunner: PackageRunner, @unchecked Sendable {  // predictions take turns
    /// Everything that changes the latency of a pass.
    let device: String
    /// The loaded functions; Core ML shares their weights.
    private let functions: [String: MLModel]
    /// Where they are, if that is not kept.
    private let temporary: TemporaryPackage?
    /// One prediction at a time: a loaded function is not thread-safe.
    private let turn = NSLock()
    /// Functions that refused preallocated outputs, which Core ML does not guarantee to accept.
    private var refusing: Set<String> = []

    /// Keeps loaded functions.
    private init(_ functions: [String: MLModel], device: String, _ temporary: TemporaryPackage?) {
      self.functions = functions
      self.device = device
      self.temporary = temporary
    }

    /// Loads the functions of a package. Compiles it if `folder` has no compiled package of this bundle, or one that
    /// does not load because it is damaged or from an older system.
    static func open(
      _ package: URL, identity: String, units: ComputeUnits?, keptIn folder: URL?
    ) async throws -> (CoreMLRunner, PackageLayout) {
      let packages = folder.map(CompiledPackages.init)
      if let packages, let kept = packages.kept(identity) {
        do {
          return try await load(kept, units, isNew: false)
        } catch let error where !(error is CancellationError) {
          packages.remove(identity)
        }
      }
      try Task.checkCancellation()
      let made: URL
      do { made = try await MLModel.compileModel(at: package) } catch { throw explained(error, "compile \(package.path)", .badProgram) }
      guard let packages else { return try await load(made, units, isNew: true, TemporaryPackage(made)) }
      return try await load(packages.keep(made, identity), units, isNew: true)
    }

    /// Loads all functions of a compiled package. The first load of each prepares it for the device's processors, which
    /// takes more memory than the function itself; the functions of a new package are therefore first loaded and
    /// released one by one.
    private static func load(
      _ compiled: URL, _ units: ComputeUnits?, isNew: Bool, _ temporary: TemporaryPackage? = nil
    ) async throws -> (CoreMLRunner, PackageLayout) {
      func load(_ method: String, _ units: ComputeUnits) async throws -> MLModel {
        try Task.checkCancellation()
        let configuration = MLModelConfiguration()
        configuration.functionName = method
        configuration.computeUnits =
          switch units {
          case .all: .all
          case .cpuAndNeuralEngine: .cpuAndNeuralEngine
          case .cpuAndGPU: .cpuAndGPU
          case .cpuOnly: .cpuOnly
          }
        do {
          return try await MLModel.load(contentsOf: compiled, configuration: configuration)
        } catch {
          throw explained(error, "load \(method) of \(compiled.path) on \(units.rawValue)", .badProgram)
        }
      }
      // Each function has the package's metadata, which includes the compute units it was exported for. For most
      // packages these are the units tried first, and then no function is loaded twice.
      let tried = units ?? .cpuAndNeuralEngine
      var decode: MLModel? = try await load("decode", tried)
      let metadata = decode?.modelDescription.metadata[.creatorDefinedKey] as? [String: String]
      let layout = try PackageLayout(metadata: metadata ?? [:])
      let chosen = units ?? layout.computeUnits
      if isNew || chosen != tried { decode = nil }
      if isNew {
        for method in layout.methods where method != "decode" || chosen != tried { _ = try await load(method, chosen) }
      }
      var functions = [String: MLModel]()
      if let decode { functions["decode"] = decode }
      for method in layout.methods where functions[method] == nil { functions[method] = try await load(method, chosen) }
      let device = "\(PackageEngine.machine), Core ML on \(chosen.rawValue)"
      return (CoreMLRunner(functions, device: device, temporary), layout)
    }

    /// Core ML's error, with the operation that failed.
    private static func explained(_ error: any Error, _ task: String, _ code: StreamFuseError.Code) -> any Error {
      error is CancellationError ? error : StreamFuseError(code, "Core ML cannot \(task): \(error.localizedDescription)")
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
    func predict(
      _ method: String, _ inputs: [String: any Tensor], into room: [String: any Tensor]
    ) throws -> [String: any Tensor] {
      guard let function = functions[method] else {
        throw StreamFuseError(.badProgram, "the package has no function \(method)")
      }
      let features = try MLDictionaryFeatureProvider(
        dictionary: inputs.mapValues { ($0 as! CoreMLTensor).value })  // they are all from makeTensor
      let found: any MLFeatureProvider
      do {
        found = try turn.withLock {
          guard !room.isEmpty, !refusing.contains(method) else { return try function.prediction(from: features) }
          let options = MLPredictionOptions()
          options.outputBackings = room.mapValues { ($0 as! CoreMLTensor).array }
          do { return try function.prediction(from: features, options: options) } catch {
            let found = try function.prediction(from: features)
            refusing.insert(method)
            return found
          }
        }
      } catch { throw Self.explained(error, "run \(method)", .execution) }
      return try found.featureNames.reduce(into: [:]) { outputs, name in
        if let array = found.featureValue(for: name)?.multiArrayValue { outputs[name] = try CoreMLTensor(array) }
      }
    }

    /// A surface of zeros, or nil if the sizes are too large for one.
    private static func surface(width: Int, height: Int) -> CVPixelBuffer? {
      var made: CVPixelBuffer?
      let attributes = [kCVPixelBufferIOSurfacePropertiesKey: [:] as CFDictionary] as CFDictionary
      CVPixelBufferCreate(nil, width, height, kCVPixelFormatType_OneComponent16Half, attributes, &made)
      guard let made, CVPixelBufferLockBaseAddress(made, []) == kCVReturnSuccess else { return nil }
      memset(CVPixelBufferGetBaseAddress(made)!, 0, CVPixelBufferGetBytesPerRow(made) * height)
      CVPixelBufferUnlockBaseAddress(made, [])
      return made
    }
  }
#endif
