import Foundation

#if !canImport(Darwin)
  import FileProviders
#endif

/// A folder outside of the app, which the system lends. Its files may be in a cloud: a file provider brings them onto the
/// device when they are read, which takes as long as it takes.
final class LentFolder: @unchecked Sendable {  // a coordinator's `cancel` may come from any thread
  private let folder: URL
  private let coordinator = NSFileCoordinator(filePresenter: nil)

  /// A folder that the user chose.
  init(_ folder: URL) { self.folder = folder }

  /// Gives the folder to `body`, for as long as that takes.
  func read(_ body: (URL) throws -> Void) throws {
    let lent = folder.startAccessingSecurityScopedResource()
    defer { if lent { folder.stopAccessingSecurityScopedResource() } }
    try read(folder, body)
  }

  /// Gives one of its files to `body`, once it is on the device.
  func read(_ file: URL, _ body: (URL) throws -> Void) throws {
    var refusal: NSError?
    var result: Result<Void, any Error>?
    coordinator.coordinate(readingItemAt: file, options: .withoutChanges, error: &refusal) { place in
      result = Result { try body(place) }
    }
    if let refusal { throw refusal }
    try result?.get()
  }

  /// Ends what waits for a file.
  func cancel() { coordinator.cancel() }
}
