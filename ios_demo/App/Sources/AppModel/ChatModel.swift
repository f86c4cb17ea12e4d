import Foundation
import Observation
import StreamFuseCore

/// The open chat, and the one model that the app has open. Its functions return at once; what they start runs one after
/// another, and model and files work on threads of their own. A chat belongs to its bundle: opening one loads the
/// other.
@MainActor @Observable
public final class ChatModel {
  /// What the screen shows, but for the answer that is being written.
  public internal(set) var state = ChatState()
  /// The answer that is being written.
  public let answer = AnswerModel()
  /// The text of the input field. Apart from the state, so that a key redraws nothing else.
  public internal(set) var input = ""

  let library: any Library
  let folderOf: (String) -> URL
  let memory: MemoryFolder
  let settings: SettingsStore
  let store: ChatStore
  let clock: @Sendable () -> Double

  var model: (any OpenModel)?
  @ObservationIgnored var session: (any OpenSession)?
  @ObservationIgnored var system: String?
  /// What the model is opened with; nil if none is open.
  @ObservationIgnored var loaded: LoadChoices?
  /// What runs, or ran, last.
  @ObservationIgnored private var last = Task {}
  /// The number of queued or running tasks that may replace the chat or take its model.
  private var replacing = 0
  /// The finish reason of an answer that is being stopped; nil if none is.
  @ObservationIgnored var stopping: String?
  /// Whether the cache of the session, or a refused text in the input field, is newer than the file.
  @ObservationIgnored var unsaved = false
  /// The turns before an edit or a retry whose answer is being written; nil if it replaces none.
  @ObservationIgnored var replaced: [Turn]?
  /// Whether the model was unloaded because memory was short.
  @ObservationIgnored private var putAway = false
  /// How often the user has come back.
  @ObservationIgnored private var returns = 0
  /// When the last question was asked.
  @ObservationIgnored var changedAt = Date()
  /// Called when a chat on disk has changed.
  @ObservationIgnored var changed: @MainActor () async -> Void = {}

  /// A chat of which nothing is loaded.
  ///
  /// - Parameters:
  ///   - folderOf: returns the folder of the bundle with a name.
  ///   - memory: stores remembered answers.
  ///   - store: stores the chats.
  ///   - clock: returns a time in seconds.
  init(
    _ library: any Library, folderOf: @escaping (String) -> URL, memory: MemoryFolder, settings: SettingsStore,
    store: ChatStore, clock: @escaping @Sendable () -> Double = { ProcessInfo.processInfo.systemUptime }
  ) {
    self.library = library
    self.folderOf = folderOf
    self.memory = memory
    self.settings = settings
    self.store = store
    self.clock = clock
  }

  /// Loads the chosen bundle, and the chat that was open when the last process ended.
  func begin() {
    later { [self] in
      let bundle = settings.bundle
      guard let left = settings.chat else { return await load(bundle) }
      let isOfAnother = await store.read(left).map { $0.record.bundle != bundle } ?? false
      if isOfAnother { await load(bundle) } else { await load(bundle, chat: left) }
    }
  }

  /// Uses another bundle, in the chat that was used last with it; nil: none.
  @discardableResult
  func open(_ bundle: String?) -> Task<Void, Never> {
    if bundle == settings.bundle && model != nil && replacing == 0 { return last }
    return later(stop: bundle == settings.bundle ? nil : End.stopped, replaces: true) { [self] in
      if bundle == settings.bundle && model != nil { return }  // it is still open, or an earlier work has opened it
      await save()
      settings.bundle = bundle
      settings.chat = nil  // the one used last
      await load(bundle)
    }
  }

  /// Opens a saved chat, with the bundle that it belongs to.
  @discardableResult
  func openChat(_ id: String) -> Task<Void, Never> {
    if id == state.chat && replacing == 0 { return last }
    return later(stop: id == state.chat ? nil : End.stopped, replaces: true) { [self] in
      if id == state.chat && session != nil { return }  // it is still open, or an earlier work has opened it
      await save()
      await show(id)
    }
  }

  /// Begins a new chat, with the system prompt of the settings.
  @discardableResult
  public func newChat() -> Task<Void, Never> {
    later(stop: End.stopped) { [self] in
      guard let model, let bundle = settings.bundle else { return }
      await save()
      await show(model, bundle, nil)
    }
  }

  /// Removes a chat from the list, until `restore`. The open chat is replaced by a new one.
  func delete(_ id: String) -> Task<Void, Never> {
    later(stop: id == state.chat ? End.stopped : nil, replaces: true) { [self] in
      if id == state.chat {  // also if an earlier work has opened it
        await save()
        if let model, let bundle = settings.bundle {
          await show(model, bundle, nil)
        } else {
          state.chat = nil
          state.turns = []
        }
      }
      await store.sweep()
      await store.delete(id)
      if id == settings.chat { settings.chat = nil }
      await changed()
    }
  }

  /// Brings a deleted chat back, and opens it.
  func restore(_ id: String, opened: Bool) -> Task<Void, Never> {
    later(stop: opened ? End.stopped : nil) { [self] in
      guard await store.restore(id) else { return }
      if opened {
        await save()
        await show(id)
      }
      await changed()
    }
  }

  /// Deletes the chats and the remembered answers of a bundle that is deleted.
  func forget(_ bundle: String) async {
    await store.clear(bundle)
    await memory.erase(bundle)
    await changed()
  }

  /// Erases the answers that models have kept, on disk and in memory. Its value is what to tell the user.
  @discardableResult
  public func forgetAnswers() -> Task<String, Never> {
    later { [self] in
      var told = Word.erased()
      do {
        if loaded?.remembersAnswers == true { try await model?.forget() }
      } catch {
        told = sentence(of: error)
      }
      await memory.erase(keeping: loaded?.remembersAnswers == true ? settings.bundle : nil)
      return told
    }
  }

  /// Loads the model again if a setting was changed that needs it, and continues the chat; nil if none was. A model that
  /// is being loaded or is lent is loaded again after that.
  @discardableResult
  public func applySettings() -> Task<Void, Never>? {
    guard needsLoading else { return nil }
    return later(stop: End.stopped) { [self] in
      guard needsLoading else { return }  // it is unloaded, or an earlier work has loaded it again
      await save()
      await load(settings.bundle, chat: state.chat)
    }
  }

  /// Whether the model is open, or being opened, with other settings than those of now.
  private var needsLoading: Bool { loaded.map { $0 != settings.settings.loading } ?? false }

  /// The user has left the app. The answer may go on for `grace`; it ends there, and the chat is saved before the
  /// process may be killed. Where the user is back before, it goes on. What there is of the answer is written at once:
  /// the process may be killed earlier.
  func leave(grace: Duration) -> Task<Void, Never> {
    keepTyped()
    guard state.phase == .writing else { return later { await self.save() } }
    let seen = returns, writing = last
    if grace <= .zero { stop(End.left) }
    return Task { [self] in
      await keepUnfinished()
      let end = Task {
        try await Task.sleep(for: grace)
        if seen == returns { stop(End.left) }
      }
      await writing.value
      end.cancel()
      await later { await self.save() }.value
    }
  }

  /// Ends the answer of a user who has left: the background time is over.
  func endNow() { if state.phase == .writing { stop(End.left) } }

  /// Saves the chat after what is under way: the system may end the process.
  func saveSoon() -> Task<Void, Never> { later { await self.save() } }

  /// Unloads the model, because memory is short while the user is elsewhere; `comeBack` loads it again.
  func putModelAway() -> Task<Void, Never> {
    later(stop: End.left) { [self] in
      guard model != nil else { return }
      await save()
      unload()
      state.phase = .loading
      putAway = true
    }
  }

  /// The user is back.
  @discardableResult
  func comeBack() -> Task<Void, Never> {
    returns += 1
    return later { [self] in
      guard putAway else { return }
      putAway = false
      await load(settings.bundle, chat: state.chat)
    }
  }

  /// Lends the model, whose own answer ends; nil if none is open. Cancelling the caller's task cancels `use`.
  func lend<Result: Sendable>(_ use: @escaping @MainActor (any OpenModel) async throws -> Result) async throws -> Result? {
    stop()
    replacing += 1
    let task = Task { [self, last] in
      defer { replacing -= 1 }
      await last.value
      guard let model else { return nil as Result? }
      state.phase = .lent
      defer { state.phase = .ready }
      return try await use(model)
    }
    last = Task { _ = try? await task.value }
    return try await withTaskCancellationHandler { try await task.value } onCancel: { task.cancel() }
  }

  /// Ends the answer at its next token.
  public func stop() { stop(End.stopped) }

  func stop(_ why: String) {
    if stopping == nil { stopping = why }
    session?.stop()
  }

  /// Whether a question may be asked now: not while the chat or its model is about to be replaced.
  public var canAsk: Bool { state.phase == .ready && replacing == 0 }

  /// Runs `work` after the work under way; `stop`: the finish reason of the answer that ends for it, nil to let it
  /// finish; `replaces`: whether it may replace the chat or take its model, as all work that ends an answer does. No
  /// question is asked until such work has run.
  @discardableResult
  func later<Found: Sendable>(
    stop why: String? = nil, replaces: Bool = false, _ work: @escaping @MainActor () async -> Found
  ) -> Task<Found, Never> {
    if let why { stop(why) }
    let counted = replaces || why != nil ? 1 : 0
    replacing += counted
    let task = Task { [self, last] in
      defer { replacing -= counted }
      await last.value
      return await work()
    }
    last = Task { _ = await task.value }
    return task
  }
}
