import Foundation

/// The folders of a store: names that begin with a dot are those of unfinished work.
extension BundleStore {
  static let unfinished = ".unfinished-", partial = ".download-", content = "bundle", part = ".part"

  /// Gives a checked folder its name, or the next one that is free.
  nonisolated func install(_ content: URL, _ wanted: String) async throws -> InstalledBundle {
    try await files.run {
      for path in (try? FileManager.default.subpathsOfDirectory(atPath: content.path)) ?? [] {
        let inside = content.appending(path: path)
        if isFolder(inside) { syncFolder(inside) }
      }
      syncFolder(content)
      let plain = wanted.map { $0.isLetter || $0.isNumber || "._ -".contains($0) ? $0 : "_" }
      let cut = String(plain.prefix(60)).trimmingCharacters(in: CharacterSet(charactersIn: " ."))
      let base = cut.isEmpty ? "bundle" : cut
      var target = folder(base), number = 1
      while true {
        if !FileManager.default.fileExists(atPath: target.path) {
          do {
            try FileManager.default.moveItem(at: content, to: target)
            break
          } catch where FileManager.default.fileExists(atPath: target.path) {}  // another store was faster
        }
        number += 1
        target = folder("\(base) \(number)")
      }
      syncFolder(directory)
      return installed(at: target)
    }
  }

  /// Runs `work` with a folder of its own, which is deleted at the end.
  nonisolated func temporary<Result: Sendable>(
    _ work: @Sendable (URL) async throws -> Result
  ) async throws -> Result {
    let claim = try await files.run { try Claim(folder(Self.unfinished + UUID().uuidString)) }
    guard let claim else { throw StreamFuseError(.broken, "a new name is taken") }
    do {
      let result = try await work(claim.folder)
      await remove(claim.folder)
      return withExtendedLifetime(claim) { result }
    } catch {
      await remove(claim.folder)
      throw error
    }
  }

  nonisolated func remove(_ folder: URL) async {
    await FileWorker().run { try? FileManager.default.removeItem(at: folder) }
  }

  nonisolated func names() -> [String] {
    (try? FileManager.default.contentsOfDirectory(atPath: directory.path)) ?? []
  }

  nonisolated func downloadFolder(_ entry: CatalogEntry) -> URL { folder(Self.partial + entry.id) }

  /// Describes an installed bundle, from its manifest and the sizes of its files.
  nonisolated func installed(at folder: URL) -> InstalledBundle {
    var hash = FileHash()
    let manifest = try? Data(contentsOf: folder.appending(path: manifestName))
    if let manifest { hash.update(manifest) }
    let bytes = regularFiles(in: folder).map(\.bytes).reduce(0, +)
    return InstalledBundle(
      name: folder.lastPathComponent, folder: folder, bytes: bytes, id: manifest == nil ? "" : hash.digits())
  }

  /// The number of bytes in the folder of a download.
  nonisolated func received(_ folder: URL) -> Int64 {
    let found = regularFiles(in: folder)
    let counted = found.filter { $0.path.hasPrefix("\(Self.content)/") || $0.path.hasSuffix(Self.part) }
    return counted.map(\.bytes).reduce(0, +)
  }

  /// When something in the folder was last written.
  nonisolated func newest(_ folder: URL) -> Date {
    let paths = [""] + regularFiles(in: folder).map(\.path)
    let places = paths.map { folder.appending(path: $0).path }
    let attributes = places.compactMap { try? FileManager.default.attributesOfItem(atPath: $0) }
    return attributes.compactMap { $0[.modificationDate] as? Date }.max() ?? .distantPast
  }

  nonisolated func busy(_ entry: CatalogEntry) -> StreamFuseError {
    StreamFuseError(.busy, "\(entry.name) is being downloaded already")
  }
}
