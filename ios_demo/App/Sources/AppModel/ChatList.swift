import Observation

/// The list of chats: finds, opens, renames and deletes them. All but renaming runs in the order of the chat's work.
@MainActor @Observable
public final class ChatList {
  /// All chats, the latest first.
  public private(set) var all: [ChatSummary] = []
  /// The search text.
  public private(set) var query = ""
  /// The chat that was deleted just now and can be restored.
  public private(set) var deleted: ChatSummary?
  /// What went wrong last.
  public private(set) var message: String?

  /// The ids of the chats that match the query; nil if it is empty.
  private var found: Set<String>?
  private let store: ChatStore
  private let chat: ChatModel
  /// How long a deleted chat can be restored.
  @ObservationIgnored var undoTime = Duration.seconds(10)
  @ObservationIgnored private var wasOpen = false
  @ObservationIgnored private var forgetting: Task<Void, Never>?

  /// The chats in a store, of which `chat` has one open.
  init(_ store: ChatStore, _ chat: ChatModel) {
    self.store = store
    self.chat = chat
    chat.changed = { [weak self] in await self?.refresh() }
  }

  /// The chats to show.
  public var shown: [ChatSummary] { found.map { found in all.filter { found.contains($0.id) } } ?? all }

  /// The id of the open chat.
  public var open: String? { chat.state.chat }

  /// Reads the chats.
  func begin() async { all = await store.begin() }

  /// Shows only chats with these words in their title or text.
  @discardableResult
  public func search(_ words: String) -> Task<Void, Never> {
    query = words
    return Task { await refresh() }
  }

  /// Opens a chat.
  @discardableResult
  public func open(_ id: String) -> Task<Void, Never> { chat.openChat(id) }

  /// Begins a new chat.
  @discardableResult
  public func new() -> Task<Void, Never> { chat.newChat() }

  /// Gives a chat a title; an empty one is its first question again.
  @discardableResult
  public func rename(_ id: String, _ title: String) -> Task<Void, Never> {
    Task {
      do {
        try await store.rename(id, title)
      } catch {
        message = Word.errorNotSaved(reason(of: error))
      }
      await refresh()
    }
  }

  /// Deletes a chat, which `undo` brings back for a while.
  @discardableResult
  public func delete(_ id: String) -> Task<Void, Never>? {
    guard let summary = all.first(where: { $0.id == id }) else { return nil }
    forgetting?.cancel()
    wasOpen = id == open
    deleted = summary
    let task = chat.delete(id)
    forgetting = Task { [store, undoTime] in
      guard (try? await Task.sleep(for: undoTime)) != nil else { return }
      deleted = nil
      await task.value
      await store.sweep()
    }
    return task
  }

  /// Brings the deleted chat back, and opens it where it was open.
  @discardableResult
  public func undo() -> Task<Void, Never>? {
    guard let back = deleted else { return nil }
    forgetting?.cancel()
    deleted = nil
    return chat.restore(back.id, opened: wasOpen)
  }

  private func refresh() async {
    let words = query
    let list = await store.list
    let hits = words.allSatisfy(\.isWhitespace) ? nil : await store.find(words)
    if words == query { (all, found) = (list, hits) }  // else a later query is on its way
  }
}
