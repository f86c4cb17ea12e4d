import AppModel
import Foundation
import StreamFuse

/// The library itself.
public struct InstalledLibrary: Library {
  /// The library.
  public init() {}

  public var backends: [String: String?] { StreamFuse.backends }

  public func open(_ folder: URL, threads: Int?, memory: URL?, checkHashes: Bool) async throws -> any OpenModel {
    let model = try await StreamFuse.load(from: folder) {
      $0.threads = threads
      $0.memoryFile = memory
      $0.checkHashes = checkHashes
    }
    return LoadedModel(model, threads: threads)
  }

  public func removeCaches(of folder: URL, unlessUsedBy others: [URL]) async {
    await StreamFuse.removeCaches(of: folder, unlessUsedBy: others)
  }
}
