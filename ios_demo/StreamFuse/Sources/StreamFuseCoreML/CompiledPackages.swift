import Foundation
import StreamFuseCore

/// Compiled packages, kept in a folder under the identity of their bundle, so that each is compiled once. Other processes
/// may use the folder at the same time.
struct CompiledPackages: Sendable {
  /// Where they are kept.
  let folder: URL

  /// Where that of a bundle is, or would be.
  func place(_ identity: String) -> URL { folder.appending(path: identity.prefix(64) + ".mlmodelc", directoryHint: .isDirectory) }

  /// That of a bundle, where it is kept.
  func kept(_ identity: String) -> URL? {
    let place = place(identity)
    return FileManager.default.fileExists(atPath: place.path) ? place : nil
  }

  /// Keeps what was compiled; where it is then. Whoever was first wins.
  func keep(_ made: URL, _ identity: String) throws -> URL {
    let place = place(identity), files = FileManager.default
    try files.createDirectory(at: folder, withIntermediateDirectories: true)
    do {
      try files.moveItem(at: made, to: place)
    } catch {
      guard files.fileExists(atPath: place.path) else { throw error }
      try? files.removeItem(at: made)
    }
    return place
  }

  /// Removes that of a bundle: the bundle goes, or what is kept does not load.
  func remove(_ identity: String) { try? FileManager.default.removeItem(at: place(identity)) }
}
