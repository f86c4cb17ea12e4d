import Foundation

/// A chat on disk. `title` is the user's own; nil: the first question is the title. `cache` names the file beside it
/// with the model's cache of exactly these turns; nil: there is none, and the turns are prefilled again.
struct ChatRecord: Codable, Equatable, Sendable {
  var id: String
  var bundle: String
  var system: String?
  var turns: [Turn]
  var unsent: String?
  var title: String?
  var cache: String?
  /// When its last question was asked.
  var changed: Date

  /// An empty chat.
  static func new(_ bundle: String, _ systemPrompt: String) -> ChatRecord {
    let system = systemPrompt.allSatisfy(\.isWhitespace) ? nil : systemPrompt
    return ChatRecord(id: UUID().uuidString, bundle: bundle, system: system, turns: [], changed: Date())
  }
}

/// A saved chat, as the list shows it.
public struct ChatSummary: Sendable, Equatable, Identifiable {
  /// The name of its folder.
  public let id: String
  /// The user's own title, or the first question.
  public let title: String
  /// The bundle that it belongs to.
  public let bundle: String
  /// When its last question was asked.
  public let changed: Date

  init(_ record: ChatRecord) {
    id = record.id
    bundle = record.bundle
    changed = record.changed
    title = record.title ?? Self.title(record.turns.first?.text ?? record.unsent ?? "")
  }

  /// A question on one line, cut at a word.
  static func title(_ question: String) -> String {
    let line = question.split(whereSeparator: \.isWhitespace).joined(separator: " ")
    if line.count <= 60 { return line }
    let cut = line.prefix(60)
    return (cut.lastIndex(of: " ").map { cut[..<$0] } ?? cut) + " …"
  }
}

/// Keeps each chat in a folder of its own. The process may end at any moment: the record is replaced in one step and
/// names its cache file, so that the two never disagree.
///
/// Conversations are private: nobody reads the files while the device is locked. They can be written then, because a
/// chat is saved where the user leaves the app, which may be by locking the device. So the records are held in memory
/// too.
actor ChatStore {
  private static let deleted = ".deleted-"
  /// How many chats keep their caches, megabytes each; the turns of others are prefilled again.
  static let mostCaches = 5

  /// Where the chats are kept.
  private let folder: URL
  private var records: [String: ChatRecord] = [:]

  private nonisolated let executor = QueueExecutor("chats")
  nonisolated var unownedExecutor: UnownedSerialExecutor { executor.asUnownedSerialExecutor() }

  /// The chats in a folder.
  init(folder: URL) { self.folder = folder }

  /// Reads all chats, and removes those that an ended process had deleted.
  func begin() -> [ChatSummary] {
    sweep()
    for id in names() where !id.hasPrefix(".") {
      if let record = recordOnDisk(id) { records[id] = record }
    }
    return list
  }

  /// All chats, the latest first.
  var list: [ChatSummary] { latest.map(ChatSummary.init) }

  /// A chat, and the file of its cache if it has one; nil if there is no such chat.
  func read(_ id: String) -> (record: ChatRecord, cache: URL?)? {
    records[id].map { record in (record, record.cache.map { place(id).appending(path: $0) }) }
  }

  /// The chat of a bundle that was used last.
  func last(of bundle: String) -> String? { latest.first { $0.bundle == bundle }?.id }

  /// Chats that have all these words in their title or their text.
  func find(_ query: String) -> Set<String> {
    let words = query.split(whereSeparator: \.isWhitespace)
    let found = records.values.filter { record in
      let texts = [ChatSummary(record).title] + record.turns.map(\.text)
      return words.allSatisfy { word in
        texts.contains { $0.range(of: word, options: [.caseInsensitive, .diacriticInsensitive]) != nil }
      }
    }
    return Set(found.map(\.id))
  }

  /// Writes the turns alone, which is cheap enough after each of them. The title is kept.
  func write(_ record: ChatRecord) throws {
    var record = record
    record.title = records[record.id]?.title
    try put(record)
    try removeOtherFiles(of: record)
  }

  /// Writes the turns and the cache of them. The title is kept.
  func write(_ record: ChatRecord, cacheOf session: any OpenSession) async throws {
    var record = record
    let place = try made(record.id)
    let cache = records[record.id]?.cache == "a.cache" ? "b.cache" : "a.cache"
    try await session.save(to: place.appending(path: cache))
    record.cache = cache
    try write(record)
    for var old in latest.filter({ $0.cache != nil }).dropFirst(Self.mostCaches) {
      old.cache = nil
      try put(old)
      try removeOtherFiles(of: old)
    }
  }

  /// Gives a chat a title of its own; an empty one is that of the first question again. The chat may be being saved, so
  /// no other file is touched.
  func rename(_ id: String, _ title: String) throws {
    guard var record = records[id] else { return }
    let plain = title.trimmingCharacters(in: .whitespacesAndNewlines)
    record.title = plain.isEmpty ? nil : plain
    try put(record)
  }

  /// Takes a chat out of the list; until the next sweep `restore` brings it back.
  func delete(_ id: String) {
    records[id] = nil
    let hidden = place(Self.deleted + id)
    do {
      try FileManager.default.moveItem(at: place(id), to: hidden)
    } catch {
      try? FileManager.default.removeItem(at: place(id))
    }
  }

  /// Brings a deleted chat back; whether it could.
  func restore(_ id: String) -> Bool {
    let hidden = place(Self.deleted + id)
    try? FileManager.default.moveItem(at: hidden, to: place(id))
    records[id] = recordOnDisk(id)
    return records[id] != nil
  }

  /// Removes deleted chats for good.
  func sweep() {
    for name in names() where name.hasPrefix(Self.deleted) { try? FileManager.default.removeItem(at: place(name)) }
  }

  /// Deletes the chats of a bundle for good: nothing can go on with them.
  func clear(_ bundle: String) {
    for record in latest where record.bundle == bundle { delete(record.id) }
    sweep()
  }

  private var latest: [ChatRecord] { records.values.sorted { ($1.changed, $0.id) < ($0.changed, $1.id) } }

  private func put(_ record: ChatRecord) throws {
    _ = try made(record.id)
    #if canImport(Darwin)
      let options: Data.WritingOptions = [.atomic, .completeFileProtectionUnlessOpen]
    #else
      let options: Data.WritingOptions = .atomic
    #endif
    try JSONEncoder().encode(record).write(to: recordFile(record.id), options: options)
    records[record.id] = record
  }

  /// Removes caches that the record does not name.
  private func removeOtherFiles(of record: ChatRecord) throws {
    for file in try FileManager.default.contentsOfDirectory(at: place(record.id), includingPropertiesForKeys: nil)
    where ![recordFile(record.id).lastPathComponent, record.cache].contains(file.lastPathComponent) {
      try? FileManager.default.removeItem(at: file)
    }
  }

  /// Nil if there is none that can be read.
  private func recordOnDisk(_ id: String) -> ChatRecord? {
    guard let data = try? Data(contentsOf: recordFile(id)), let record = try? JSONDecoder().decode(ChatRecord.self, from: data)
    else { return nil }
    return record.id == id ? record : nil
  }

  private func names() -> [String] { (try? FileManager.default.contentsOfDirectory(atPath: folder.path)) ?? [] }

  private func place(_ id: String) -> URL { folder.appending(path: id, directoryHint: .isDirectory) }

  private func recordFile(_ id: String) -> URL { place(id).appending(path: "chat.json") }

  /// The folder of a chat. Files that the library writes there are protected as the folder is.
  private func made(_ id: String) throws -> URL {
    try FileManager.default.createDirectory(at: place(id), withIntermediateDirectories: true, attributes: privateFolder)
    return place(id)
  }
}

/// Attributes of a folder whose files nobody reads while the device is locked.
var privateFolder: [FileAttributeKey: Any]? {
  #if canImport(Darwin)
    [.protectionKey: FileProtectionType.completeUnlessOpen]
  #else
    nil
  #endif
}
