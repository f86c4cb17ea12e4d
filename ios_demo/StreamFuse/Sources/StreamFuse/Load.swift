@_exported import StreamFuseCore
@_exported import StreamFuseText

import Foundation
import StreamFuseCoreML
import StreamFuseEngine

/// How a bundle is loaded.
public struct LoadOptions: Sendable {
  /// Threads of the native engine; nil lets it choose (on phones: the big cores).
  public var threads: Int?
  /// Where a Core ML bundle runs; nil: as it was exported.
  public var computeUnits: ComputeUnits?
  /// Where measured costs of passes are kept; nil: a model's first drafted answer measures them anew,
  /// about 250 ms. The app's caches folder, where nobody says otherwise.
  public var costFolder: URL? = FileManager.default.urls(for: .cachesDirectory, in: .userDomainMask).first?
    .appending(path: "streamfuse/plans")
  /// Where compiled Core ML packages are kept; nil compiles them at each start. The app's caches folder, where nobody says
  /// otherwise.
  public var compiledFolder: URL? = FileManager.default.urls(for: .cachesDirectory, in: .userDomainMask).first?
    .appending(path: "streamfuse/compiled")
  /// Whether to read the whole bundle and compare its SHA-256 sums. Turn it off only for a bundle that was checked when
  /// it was installed.
  public var checkHashes = true
  /// The line that `streamfuse bundle keygen` wrote: 64 hexadecimal digits. A bundle that this key did not sign is refused, and
  /// hashes are checked whatever `checkHashes` says. Nil: nobody asks who wrote the bundle.
  public var publicKey: String?

  /// The defaults.
  public init() {}
}

/// Opens and checks the bundle in `folder` and loads its graphs, off the calling task's thread. It takes from a tenth of a
/// second to some seconds; a Core ML package that the device sees for the first time may take a minute. Where the task is
/// cancelled it ends after the step that runs, with `CancellationError`.
///
///     let model = try await StreamFuse.load(from: url) { $0.threads = 4 }
///     let chat = model.chat(instructions: "You answer in one sentence.")
///     for try await piece in chat.stream(to: "Why is the sky blue?") { print(piece.text, terminator: "") }
///
/// Throws `StreamFuseError` where the bundle cannot be used here, or is not signed with the key of the options; its
/// sentence names file and field.
public func load(from folder: URL, _ configure: (inout LoadOptions) -> Void = { _ in }) async throws -> Model {
  var options = LoadOptions()
  configure(&options)
  let started = ContinuousClock.now
  let bundle = try await blocking { [options] in
    try ModelBundle(folder: folder, checkHashes: options.checkHashes, publicKey: options.publicKey)
  }
  try Task.checkCancellation()
  let engine: any Engine =
    switch bundle.facts.target {
    case "executorch":
      try await blocking { [options] in
        try NativeEngine(graph: bundle.graph, spec: bundle.spec, threads: options.threads ?? 0)
      }
    case "coreml":
      try await openPackage(bundle.graph, spec: bundle.spec, units: options.computeUnits, compiled: options.compiledFolder)
    default:
      throw StreamFuseError(
        .badProgram,
        "\(folder.path) is for \(bundle.facts.target), which this app does not run: export it with --target executorch or coreml"
      )
    }
  return try Model(
    spec: bundle.spec, tables: bundle.tables(), engine: engine, defaults: bundle.defaults, manifest: bundle.manifest,
    backend: bundle.facts.backend, loadMs: (ContinuousClock.now - started) / .milliseconds(1),
    costFolder: options.costFolder, canChat: bundle.canChat, text: { try bundle.makeText($0) })
}

/// The backends that this library has, each with the sentence that says why it cannot run on this device; nil: it can.
/// Compare `Model.backend`. The first call opens the libraries of delegates that are not linked: some milliseconds.
public var backends: [String: String?] {
  var found = NativeEngine.backends
  #if canImport(CoreML)
    found.updateValue(nil, forKey: "mlprogram")
  #else
    found["mlprogram"] = "Core ML is a framework of Apple's systems"
  #endif
  return found
}

/// Removes what `load` keeps outside of the bundle in `folder`: its compiled Core ML package. Call it before the folder is
/// deleted; nothing happens where there is no bundle, or nothing is kept. `configure` names another `compiledFolder`.
public func removeCaches(of folder: URL, _ configure: (inout LoadOptions) -> Void = { _ in }) async {
  var options = LoadOptions()
  configure(&options)
  guard let compiled = options.compiledFolder else { return }
  try? await blocking {
    let bundle = try ModelBundle(folder: folder, checkHashes: false)
    removeCompiledPackage(identity: bundle.spec.identity, in: compiled)
  }
}

/// Runs what reads files and loads graphs: not on Swift's shared pool.
private func blocking<Result: Sendable>(_ work: @escaping @Sendable () throws -> Result) async throws -> Result {
  try await withCheckedThrowingContinuation { continuation in
    DispatchQueue.global(qos: .userInitiated).async { continuation.resume(with: Swift.Result { try work() }) }
  }
}
