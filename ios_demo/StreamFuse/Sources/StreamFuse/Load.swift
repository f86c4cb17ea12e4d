@_exported import StreamFuseCore

import Foundation
import StreamFuseCoreML

/// Options for loading a bundle.
public struct LoadOptions: Sendable {
  /// Threads of the native engine; nil lets it choose (on phones: the big cores).
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
/// task is cancelled, loading ends after the current step with `CancellationError`.
///
///     let model = try await StreamFuse.load(from: url) { $0.threads = 4 }
///     let chat = model.chat(instructions: "You answer in one sentence.")
///     for try await piece in chat.stream(to: "Why is the sky blue?") { print(piece.text, terminator: "") }
///
/// Throws `StreamFuseError` if the bundle cannot be used here or is not signed with the key of the options; the message
/// names file and field.
public func load(from folder: URL, _ configure: (inout LoadOptions) -> Void = { _ in }) async throws -> Model {
  var options = LoadOptions()
  configure(&options)
  let bundle = try await blocking { [options] in try NativeModel(folder: folder, options, ownEngine: 2) }
  try Task.checkCancellation()
  switch bundle.facts.target {
  case "executorch": return bundle.model()
  case "coreml":
    return try await model(bundle) { [options] in
      try await openPackage($1, spec: $0, units: options.computeUnits, compiled: options.compiledFolder)
    }
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
  engine makeEngine: @Sendable (ModelSpec, URL) async throws -> any Engine
) async throws -> Model {
  var options = LoadOptions()
  configure(&options)
  let bundle = try await blocking { [options] in try NativeModel(folder: folder, options, ownEngine: 1) }
  try Task.checkCancellation()
  return try await model(bundle, makeEngine)
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
/// delete the folder; it does nothing if there is no bundle or nothing is stored. `configure` names another
/// `compiledFolder`.
public func removeCaches(of folder: URL, _ configure: (inout LoadOptions) -> Void = { _ in }) async {
  var options = LoadOptions()
  configure(&options)
  guard let compiled = options.compiledFolder else { return }
  try? await blocking {
    var options = LoadOptions()
    options.checkHashes = false
    let bundle = try NativeModel(folder: folder, options, ownEngine: 1)
    removeCompiledPackage(identity: bundle.spec.identity, in: compiled)
  }
}

/// Reads files and loads graphs outside Swift's shared thread pool.
private func blocking<Result: Sendable>(_ work: @escaping @Sendable () throws -> Result) async throws -> Result {
  try await withCheckedThrowingContinuation { continuation in
    DispatchQueue.global(qos: .userInitiated).async { continuation.resume(with: Swift.Result { try work() }) }
  }
}
