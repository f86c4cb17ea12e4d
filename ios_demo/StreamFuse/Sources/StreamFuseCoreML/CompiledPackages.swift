import Foundation
import StreamFuseCore

/// A folder of compiled packages by bundle identity, so that each is compiled only once. Other processes may use the
/// folder at the same time.
struct CompiledPackages: Sendable {
  /// Where they are kept.
  let folder: URL

  /// The path of a bundle's compiled package, whether it exists or not.
  func place(_ identity: String) -> URL { folder.appending(path: identity.prefix(64) + ".mlmodelc", directoryHint: .isDirectory) }

  /// The compiled package of a bundle, if it is stored.
  func kept(_ identity: String) -> URL? {
    let place = place(identity)
    return FileManager.default.fileExists(atPath: place.path) ? place : nil
  }

  /// Moves a compiled package here and returns its path. The first process to store it wins. `made` is gone even if this
  /// throws.
  func keep(_ made: URL, _ identity: String) throws -> URL {
    let place = place(identity), files = FileManager.default
    defer { try? files.removeItem(at: made) }
    try files.createDirectory(at: folder, withIntermediateDirectories: true)
    do {
      try files.moveItem(at: made, to: place)
    } catch where files.fileExists(atPath: place.path) {}
    return place
  }

  /// Removes the compiled package of a bundle that is being deleted, or whose package does not load.
  func remove(_ identity: String) { try? FileManager.default.removeItem(at: place(identity)) }
}
