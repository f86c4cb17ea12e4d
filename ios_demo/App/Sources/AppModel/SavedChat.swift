import Foundation

/// The chat on disk. `cache` names the library's file beside it, which holds the model's own memory of exactly these turns;
/// nil: there is none, and the model reads the turns again.
struct ChatRecord: Codable, Equatable {
  var bundle: String
  var system: String?
  var turns: [Turn]
  var unsent: String?
  var cache: String?
}

/// Keeps one chat in a folder. The process may end at any moment: the record is replaced in one step and names its cache
/// file, so that the two never disagree.
struct SavedChat {
  /// Where the chat is kept.
  let folder: URL

  private var recordFile: URL { folder.appending(path: "chat.json") }

  /// The last chat; nil where there is none that can be read.
  func read() -> ChatRecord? {
    (try? Data(contentsOf: recordFile)).flatMap { try? JSONDecoder().decode(ChatRecord.self, from: $0) }
  }

  /// The model's memory of a chat.
  func cache(of record: ChatRecord) -> URL? { record.cache.map { folder.appending(path: $0) } }

  /// The turns alone: cheap, after each of them.
  func write(_ record: ChatRecord) throws {
    try FileManager.default.createDirectory(at: folder, withIntermediateDirectories: true)
    try JSONEncoder().encode(record).write(to: recordFile, options: .atomic)
    for file in try FileManager.default.contentsOfDirectory(at: folder, includingPropertiesForKeys: nil)
    where ![recordFile.lastPathComponent, record.cache].contains(file.lastPathComponent) {
      try? FileManager.default.removeItem(at: file)
    }
  }

  /// The turns, and the model's memory of them.
  @MainActor func write(_ record: ChatRecord, cacheOf session: any OpenSession) async throws {
    try FileManager.default.createDirectory(at: folder, withIntermediateDirectories: true)
    var record = record
    record.cache = read()?.cache == "a.cache" ? "b.cache" : "a.cache"
    try await session.save(to: folder.appending(path: record.cache!))
    try write(record)
  }

  /// Forgets the chat.
  func clear() { try? FileManager.default.removeItem(at: folder) }
}
