import Foundation

/// The chat on disk. `cache` names the library's file beside it, which holds the model's own memory of exactly these turns;
/// nil: there is none, and the model reads the turns again.
struct ChatRecord: Codable, Equatable, Sendable {
  var bundle: String
  var system: String?
  var turns: [Turn]
  var unsent: String?
  var cache: String?
}

/// Keeps the chat of each bundle in a folder of its own. The process may end at any moment: the record is replaced in one
/// step and names its cache file, so that the two never disagree.
///
/// Conversations are private: nobody reads the files while the device is locked. They can be written then, because the
/// chat is saved where the user leaves the app, which may be by locking the device.
actor SavedChats {
  /// Where the chats are kept.
  private let folder: URL
  /// The cache files that the records on disk name. Kept here, since a record cannot be read while the device is locked.
  private var caches: [String: String] = [:]

  private nonisolated let executor = QueueExecutor("chats")
  nonisolated var unownedExecutor: UnownedSerialExecutor { executor.asUnownedSerialExecutor() }

  /// The chats in a folder.
  init(folder: URL) { self.folder = folder }

  /// The last chat with a bundle, and the model's memory of it; nil where there is none that can be read.
  func read(_ bundle: String) -> (record: ChatRecord, cache: URL?)? {
    guard let data = try? Data(contentsOf: recordFile(bundle)), let record = try? JSONDecoder().decode(ChatRecord.self, from: data),
      record.bundle == bundle
    else { return nil }
    caches[bundle] = record.cache
    return (record, record.cache.map { place(bundle).appending(path: $0) })
  }

  /// The turns alone: cheap, after each of them.
  func write(_ record: ChatRecord) throws {
    let place = try made(record.bundle)
    #if canImport(Darwin)
      let options: Data.WritingOptions = [.atomic, .completeFileProtectionUnlessOpen]
    #else
      let options: Data.WritingOptions = .atomic
    #endif
    try JSONEncoder().encode(record).write(to: recordFile(record.bundle), options: options)
    caches[record.bundle] = record.cache
    for file in try FileManager.default.contentsOfDirectory(at: place, includingPropertiesForKeys: nil)
    where ![recordFile(record.bundle).lastPathComponent, record.cache].contains(file.lastPathComponent) {
      try? FileManager.default.removeItem(at: file)
    }
  }

  /// The turns, and the model's memory of them.
  func write(_ record: ChatRecord, cacheOf session: any OpenSession) async throws {
    let place = try made(record.bundle)
    var record = record
    let cache = caches[record.bundle] == "a.cache" ? "b.cache" : "a.cache"
    try await session.save(to: place.appending(path: cache))
    record.cache = cache
    try write(record)
  }

  /// Forgets the chat with a bundle.
  func clear(_ bundle: String) {
    caches[bundle] = nil
    try? FileManager.default.removeItem(at: place(bundle))
  }

  private func place(_ bundle: String) -> URL { folder.appending(path: bundle, directoryHint: .isDirectory) }

  private func recordFile(_ bundle: String) -> URL { place(bundle).appending(path: "chat.json") }

  /// The folder of a bundle's chat. Files that the library writes there are protected as the folder is.
  private func made(_ bundle: String) throws -> URL {
    #if canImport(Darwin)
      let attributes: [FileAttributeKey: Any] = [.protectionKey: FileProtectionType.completeUnlessOpen]
    #else
      let attributes: [FileAttributeKey: Any] = [:]
    #endif
    try FileManager.default.createDirectory(at: place(bundle), withIntermediateDirectories: true, attributes: attributes)
    return place(bundle)
  }
}
