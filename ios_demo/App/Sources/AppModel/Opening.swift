import Foundation
import StreamFuseCore

/// Loads bundles, and opens and saves chats. All of it runs in the order of `ChatModel.later`.
extension ChatModel {
  /// Loads a bundle, and the chat that was used last with it.
  func load(_ bundle: String?) async {
    let chat: String? = if let bundle { await store.last(of: bundle) } else { nil }
    await load(bundle, chat: chat)
  }

  /// Loads a bundle, and one of its chats; nil: a new one.
  func load(_ bundle: String?, chat: String?) async {
    unload()
    guard let bundle else {
      show(ChatState(phase: .noBundle))
      return
    }
    // The conversation can be read while the model loads.
    let turns: [Turn] = if let chat { await store.read(chat)?.record.turns ?? [] } else { [] }
    show(ChatState(phase: .loading, bundle: bundle, chat: chat, turns: turns))
    do {
      let choices = settings.settings.loading
      loaded = choices
      let file = choices.remembersAnswers ? try await memory.file(bundle) : nil
      let opened = try await library.open(folderOf(bundle), threads: choices.threads, memory: file, checkHashes: false)
      model = opened
      await show(opened, bundle, chat)
    } catch {
      unload()
      show(ChatState(phase: .failed, bundle: bundle, error: sentence(of: error)))
    }
  }

  /// Opens a saved chat, and its bundle if another one is loaded.
  func show(_ id: String) async {
    guard let bundle = await store.read(id)?.record.bundle else { return }
    if let model, bundle == settings.bundle { return await show(model, bundle, id) }
    settings.bundle = bundle
    settings.chat = id
    await load(bundle, chat: id)
  }

  /// Opens a chat of the loaded bundle, or a new one if `id` is nil or unknown.
  func show(_ model: any OpenModel, _ bundle: String, _ id: String?) async {
    let read: (record: ChatRecord, cache: URL?)? = if let id { await store.read(id) } else { nil }
    let record = read?.record ?? .new(bundle, settings.settings.systemPrompt)
    (system, changedAt) = (record.system, record.changed)
    await restore(model, record, read?.cache)
    settings.chat = record.id
    answer.live = nil
    show(
      ChatState(
        phase: .ready, bundle: bundle, chat: record.id, canChat: model.canChat, turns: record.turns, unsent: record.unsent))
  }

  /// Shows another chat, or the same again. A refused text or an edit stays with its chat; any other typed text stays in
  /// the field.
  private func show(_ other: ChatState) {
    let isOfChat = state.editing == nil ? state.unsent != nil : state.chat != other.chat
    let typed = isOfChat ? "" : input
    state = other
    input = joined(other.unsent, typed)
    if other.unsent != nil && input != other.unsent { unsaved = true }
  }

  private func restore(_ model: any OpenModel, _ record: ChatRecord, _ cache: URL?) async {
    if let cache {
      begin(model, [])
      // A cache that cannot be read, of an older version or a full disk, is no loss: the turns are read again.
      if (try? await session?.restore(from: cache)) != nil { return }
    }
    begin(model, record.turns)
  }

  private func begin(_ model: any OpenModel, _ turns: [Turn]) {
    session = nil  // frees its memory before the next one allocates
    session = model.session(
      instructions: system, history: turns.map(\.message), contextPolicy: settings.settings.loading.contextPolicy)
    unsaved = false
  }

  /// Goes back to an earlier state of the conversation, which the model reads again.
  func rewind(to turns: [Turn]) {
    guard let model else { return }
    begin(model, turns)
    unsaved = true
  }

  /// Unloads the model and frees its memory.
  func unload() {
    session = nil
    model = nil
    loaded = nil
    answer.live = nil
  }

  /// The model's own defaults.
  public var defaults: GenerationConfig { model?.defaults ?? GenerationConfig() }

  /// Saves the chat with its cache, if that is newer than the file.
  func save() async {
    for _ in 0..<2 {  // again if the user has typed meanwhile
      guard unsaved, let session, let record else { return }
      unsaved = false
      guard await write({ [store] in try await store.write(record, cacheOf: session) }) else {
        unsaved = true
        return
      }
    }
  }

  /// Makes a text that was typed and not sent a part of the chat, so that it is saved.
  func keepTyped() {
    guard record != nil, session != nil, state.editing == nil, state.unsent == nil else { return }
    guard !input.allSatisfy(\.isWhitespace) else { return }
    state.unsent = input
    unsaved = true
  }

  /// Saves the chat as it would be if the process ended now, during an answer.
  func keepUnfinished() async {
    guard state.phase == .writing else { return }
    let (turns, refused) = ended(End.left)
    guard let record = record(turns, unsent: refused.map { joined($0, input) } ?? draft) else { return }
    await write { [store] in try await store.write(record) }
  }

  /// Saves the turns alone.
  func keepTurns() async {
    guard let record else { return }
    await write { [store] in try await store.write(record) }
  }

  /// Runs `body`, which writes the chat; shows its error. Returns whether it succeeded.
  @discardableResult
  private func write(_ body: @Sendable () async throws -> Void) async -> Bool {
    var isWritten = true
    do {
      try await body()
    } catch {
      state.error = Word.errorNotSaved(reason(of: error))
      isWritten = false
    }
    await changed()
    return isWritten
  }

  /// The chat as it stands.
  private var record: ChatRecord? { record(state.turns, unsent: draft) }

  private func record(_ turns: [Turn], unsent: String?) -> ChatRecord? {
    guard let bundle = settings.bundle, let id = state.chat else { return nil }
    return ChatRecord(id: id, bundle: bundle, system: system, turns: turns, unsent: unsent, changed: changedAt)
  }

  /// The text to keep with the chat, as the user has changed it in the input field since.
  var draft: String? { state.unsent.map { state.editing == nil ? input : $0 } }
}
