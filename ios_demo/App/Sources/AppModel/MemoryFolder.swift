import Foundation

/// Where models keep their answers, a file per bundle. They are as private as the chats.
struct MemoryFolder: Sendable {
  private let folder: URL
  private let queue = FileQueue("memory")

  /// A folder for the files.
  init(_ folder: URL) { self.folder = folder }

  /// The file of a bundle's answers, in a folder that is there.
  func file(_ bundle: String) async throws -> URL {
    try await queue.run {
      try FileManager.default.createDirectory(at: folder, withIntermediateDirectories: true, attributes: privateFolder)
      return place(bundle)
    }
  }

  /// Removes the answers of a bundle.
  func erase(_ bundle: String) async { await queue.run { try? FileManager.default.removeItem(at: place(bundle)) } }

  /// Removes the answers of all bundles but one, whose model has its file open and erases it itself.
  func erase(keeping open: String?) async {
    await queue.run {
      let files = (try? FileManager.default.contentsOfDirectory(at: folder, includingPropertiesForKeys: nil)) ?? []
      let kept = open.map { place($0).lastPathComponent }
      for file in files where file.lastPathComponent != kept { try? FileManager.default.removeItem(at: file) }
    }
  }

  private func place(_ bundle: String) -> URL { folder.appending(path: bundle + ".answers", directoryHint: .notDirectory) }
}
