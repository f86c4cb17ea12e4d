@_exported import StreamFuseCore

import CStreamFuse
import CStreamFuseNative
import Foundation
import StreamFuseCoreML

/// Options for loading a bundle.
public struct LoadOptions: Sendable {
  /// Threads of the native engine; nil lets it choose: on phones, as many as there are big cores.
  public var threads: Int?
  /// Where a Core ML bundle runs; nil: as it was exported.
  public var computeUnits: ComputeUnits?
  /// Where measured pass latencies are stored; nil: the first drafted answer of each model measures them again, about
  /// 250 ms. Default: the app's caches folder.
  public var costFolder: URL? = FileManager.default.urls(for: .cachesDirectory, in: .userDomainMask).first?
    .appending(path: "streamfuse/plans")
  /// A private file that keeps the answers of this model, as token ids, so that answers to later conversations are
  /// drafted from them and similar ones are generated faster. It holds about 0.3 MB, the latest answers; `Model.forget`
  /// erases it. Nil: no answer outlives its session.
  public var memoryFile: URL?
  /// Where compiled Core ML packages are stored; nil compiles them at each start. Default: the app's caches folder.
  public var compiledFolder: URL? = FileManager.default.urls(for: .cachesDirectory, in: .userDomainMask).first?
    .appending(path: "streamfuse/compiled")
  /// Whether to read the whole bundle and compare its SHA-256 sums. Turn it off only for a bundle that was checked when
  /// it was installed.
  public var checkHashes = true
  /// The line that `streamfuse bundle keygen` wrote: 64 hexadecimal digits. A bundle that this key did not sign is
  /// refused, and hashes are checked whatever `checkHashes` says. Nil: the signature is not checked.
  public var publicKey: String?

  /// The defaults.
  public init() {}
}

/// Opens and checks the bundle in `folder` and loads its graphs, off the calling task's thread. This takes from a tenth
/// of a second to several seconds; a Core ML package that the device sees for the first time may take a minute. If the
/// task is cancelled, loading ends with `CancellationError`: within a megabyte of hashing or one method of the graphs,
/// or after the current step of Core ML.
///
///     let model = try await StreamFuse.load(from: url) { $0.threads = 4 }
///     let chat = model.chat(instructions: "You answer in one sentence.")
///     for try await piece in chat.stream(to: "Why is the sky blue?") { print(piece.text, terminator: "") }
///
/// - Parameters:
///   - configure: sets options.
///   - progress: called from any thread, about 20 times per second, with the fraction that is done: from 0 to 1, never
///     decreasing. The first half is the bytes that are checked, the second the graphs that are loaded.
/// - Throws: `StreamFuseError` if the bundle cannot be used here or is not signed with the key of the options; the
///   message names file and field.
public func load(
  from folder: URL, _ configure: (inout LoadOptions) -> Void = { _ in },
  progress: @escaping @Sendable (_ fraction: Double) -> Void = { _ in }
) async throws -> Model {
  var options = LoadOptions()
  configure(&options)
  let bundle = try await opened(scale: 1, progress) { [options] in
    try NativeModel(folder: folder, options, ownEngine: 2, progress: $0)
  }
  try Task.checkCancellation()
  switch bundle.facts.target {
  case "executorch":
    progress(1)
    return bundle.model()
  case "coreml":
    let made = try await model(bundle) { [options] in
      try await openPackage($1, spec: $0, units: options.computeUnits, compiled: options.compiledFolder)
    }
    progress(1)
    return made
  default:
    throw StreamFuseError(
      .badProgram,
      "\(folder.path) is for \(bundle.facts.target), which this app does not run: export it with --target executorch or coreml"
    )
  }
}

/// The same with your own engine, which `makeEngine` loads from the bundle's facts and the location of its graphs.
public func load(
  from folder: URL, _ configure: (inout LoadOptions) -> Void = { _ in },
  progress: @escaping @Sendable (_ fraction: Double) -> Void = { _ in },
  engine makeEngine: @Sendable (ModelSpec, URL) async throws -> any Engine
) async throws -> Model {
  var options = LoadOptions()
  configure(&options)
  let bundle = try await opened(scale: 0.5, progress) { [options] in
    try NativeModel(folder: folder, options, ownEngine: 1, progress: $0)
  }
  try Task.checkCancellation()
  let made = try await model(bundle, makeEngine)
  progress(1)
  return made
}

/// What the bundle in `folder` occupies in memory once it is loaded, from its manifest: no other file is read, and none
/// is checked, so it takes about a millisecond. Throws `StreamFuseError` (`.badFile`) if the folder has no valid
/// manifest.
public func estimate(_ folder: URL) throws -> MemoryEstimate {
  var found = sf_estimate()
  found.size = MemoryLayout<sf_estimate>.size
  let capacity = 4096
  var message = [CChar](repeating: 0, count: capacity)
  let code = folder.withUnsafeFileSystemRepresentation { sf_model_estimate($0, &found, &message, capacity) }
  try message.withUnsafeBufferPointer { try check(code, $0.baseAddress) }
  return MemoryEstimate(
    weightsBytes: Int(found.weights_bytes), tablesBytes: Int(found.tables_bytes), cacheBytes: Int(found.cache_bytes))
}

/// The model of a bundle whose graphs another engine runs.
private func model(
  _ bundle: NativeModel, _ makeEngine: @Sendable (ModelSpec, URL) async throws -> any Engine
) async throws -> Model {
  let started = ContinuousClock.now
  let engine = try await makeEngine(bundle.spec, bundle.graph)
  return bundle.model(engine: engine, engineMs: (ContinuousClock.now - started) / .milliseconds(1))
}

/// The backends that this library contains, each with nil if it can run on this device, or else the reason why not.
/// Compare `Model.backend`. The first call opens the libraries of delegates that are not linked, which takes some
/// milliseconds.
public var backends: [String: String?] {
  var found = NativeModel.backends
  #if canImport(CoreML)
    found.updateValue(nil, forKey: "mlprogram")
  #else
    found["mlprogram"] = "Core ML is a framework of Apple's systems"
  #endif
  return found
}

/// Removes what `load` stores outside of the bundle in `folder`: its compiled Core ML package. Call it before you
/// delete the folder; it does nothing if there is no bundle or nothing is stored, or if a bundle in `others` uses the
/// same package: bundles that differ only in their stored prefixes share it. `configure` names another `compiledFolder`.
public func removeCaches(
  of folder: URL, unlessUsedBy others: [URL] = [], _ configure: (inout LoadOptions) -> Void = { _ in }
) async {
  var options = LoadOptions()
  configure(&options)
  guard let compiled = options.compiledFolder else { return }
  try? await blocking {
    guard FileManager.default.fileExists(atPath: compiled.path) else { return }
    let removed = try identity(of: folder)
    guard hasCompiledPackage(identity: removed, in: compiled) else { return }
    if others.contains(where: { (try? identity(of: $0)) == removed }) { return }
    removeCompiledPackage(identity: removed, in: compiled)
  }
}

/// The identity of the bundle in `folder`, whose files are not checked.
private func identity(of folder: URL) throws -> String {
  var options = LoadOptions()
  options.checkHashes = false
  return try NativeModel(folder: folder, options, ownEngine: 1, progress: nil).spec.identity
}

/// Reads files, loads graphs and runs passes outside Swift's shared thread pool.
func blocking<Result: Sendable>(_ work: @escaping @Sendable () throws -> Result) async throws -> Result {
  try await withCheckedThrowingContinuation { continuation in
    DispatchQueue.global(qos: .userInitiated).async { continuation.resume(with: Swift.Result { try work() }) }
  }
}
