import Foundation
import StreamFuseCore

/// The engine of a Core ML bundle. Its sessions share the loaded functions.
public final class PackageEngine: Engine {
  /// What runs the functions.
  private let runner: any PackageRunner
  /// The bundle's facts.
  private let spec: ModelSpec
  /// How the package lays out its tensors.
  private let layout: PackageLayout

  /// An engine over a package whose metadata says `layout`.
  public init(runner: any PackageRunner, spec: ModelSpec, layout: PackageLayout) throws {
    let needed = ["prefill", "decode"] + spec.verify.map(\.name) + (spec.deferred ? ["streams"] : [])
    if let missing = needed.first(where: { !layout.methods.contains($0) }) {
      throw StreamFuseError(.badProgram, "the package has no function \(missing), which its manifest names")
    }
    try layout.check(capacity: spec.capacity)
    self.runner = runner
    self.spec = spec
    self.layout = layout
  }

  /// Everything that changes the latency of a pass.
  public var device: String { runner.device }

  /// Size in bytes of the caches of one sequence.
  public var cacheBytes: Int { layout.bytes(length: spec.capacity) }

  /// An engine with empty caches.
  public func makeTable() throws -> EngineTable { EngineTable(try PackageBackend(runner, spec, layout)) }
}

/// Loads the package of a Core ML bundle. The first load on a device takes a minute. If the task is cancelled, loading
/// ends after the current step with `CancellationError`.
///
/// - Parameters:
///   - package: the folder `model.mlpackage`.
///   - units: where its functions may run; nil: as it was exported.
///   - compiled: where the compiled package is kept; nil compiles it at each start.
public func openPackage(
  _ package: URL, spec: ModelSpec, units: ComputeUnits? = nil, compiled: URL? = nil
) async throws -> PackageEngine {
  #if canImport(CoreML) || FAKE_CORE_ML
    let (runner, layout) = try await CoreMLRunner.open(package, identity: spec.identity, units: units, keptIn: compiled)
    return try PackageEngine(runner: runner, spec: spec, layout: layout)
  #else
    throw StreamFuseError(.badProgram, "\(package.path) needs Core ML, which is on Apple's systems only")
  #endif
}

/// Removes the compiled package that `openPackage` kept of a bundle with this identity.
public func removeCompiledPackage(identity: String, in compiled: URL) { CompiledPackages(folder: compiled).remove(identity) }

/// Whether there is one for a bundle of this identity.
public func hasCompiledPackage(identity: String, in compiled: URL) -> Bool {
  CompiledPackages(folder: compiled).kept(identity) != nil
}
