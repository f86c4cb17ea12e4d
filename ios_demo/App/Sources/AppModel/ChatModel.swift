import Foundation
import Observation
import StreamFuseCore

/// The chat, and the one model that the app has open. Its functions return at once; what they start runs one after
/// another, and the model works on threads of its own.
@MainActor @Observable
public final class ChatModel {
  /// What the screen shows.
  public private(set) var state = ChatState()

  private let library: any Library
  private let folderOf: (String) -> URL
  private let settings: SettingsStore
  private let saved: SavedChat
  private let clock: () -> Double

  @ObservationIgnored private var model: (any OpenModel)?
  @ObservationIgnored private var session: (any OpenSession)?
  @ObservationIgnored private var system: String?
  @ObservationIgnored private var loadedThreads: Int?
  /// What runs, or ran, last.
  @ObservationIgnored private var last = Task {}
  /// Why the answer that is being written shall end; nil: it shall not.
  @ObservationIgnored private var stopping: String?
  /// Whether the model's memory of the turns is newer than the file.
  @ObservationIgnored private var unsaved = false

  /// Loads the chosen bundle, and its chat.
  ///
  /// - Parameters:
  ///   - folderOf: where the bundle of a name lies.
  ///   - folder: where the chat is kept.
  ///   - clock: seconds.
  init(
    _ library: any Library, folderOf: @escaping (String) -> URL, settings: SettingsStore, savedIn folder: URL,
    clock: @escaping () -> Double = { ProcessInfo.processInfo.systemUptime }
  ) {
    self.library = library
    self.folderOf = folderOf
    self.settings = settings
    self.saved = SavedChat(folder: folder)
    self.clock = clock
    later { await self.load(settings.bundle) }
  }

  /// Uses another bundle, in a new chat; nil: none.
  @discardableResult
  func open(_ bundle: String?) -> Task<Void, Never> {
    later(stop: End.stopped) { [self] in
      if bundle == settings.bundle && model != nil { return }
      saved.clear()
      settings.bundle = bundle
      await load(bundle)
    }
  }

  /// Loads the model again where the number of threads was changed; the chat goes on.
  @discardableResult
  public func applySettings() -> Task<Void, Never>? {
    guard settings.settings.threads != loadedThreads, [.ready, .writing].contains(state.phase) else { return nil }
    return later(stop: End.stopped) { [self] in
      await save()
      await load(settings.bundle)
    }
  }

  /// Asks, unless the model is busy; whether it does.
  @discardableResult
  public func send(_ text: String) -> Bool {
    let asked = text.trimmingCharacters(in: .whitespacesAndNewlines)
    guard !asked.isEmpty, state.phase == .ready else { return false }
    stopping = nil
    state.phase = .writing
    state.turns += [.question(asked), Turn(role: .assistant)]
    state.live = Live()
    state.error = nil
    later { await self.write(asked) }
    return true
  }

  /// Ends the answer at its next token.
  public func stop() { stop(End.stopped) }

  /// Forgets the conversation; the next one has the system prompt of the settings.
  @discardableResult
  public func newChat() -> Task<Void, Never> {
    later(stop: End.stopped) { [self] in
      guard let model else { return }
      saved.clear()
      begin(model, settings.settings.systemPrompt, [])
      state.turns = []
      state.live = nil
      state.error = nil
    }
  }

  /// The user has left the app: the answer ends here, and the chat is saved before the process may be killed.
  func leave() -> Task<Void, Never> { later(stop: End.left) { await self.save() } }

  /// Lends the model, whose own answer ends; nil where none is open. Cancelling the caller's task cancels `use`.
  func lend<Result: Sendable>(_ use: @escaping @MainActor (any OpenModel) async throws -> Result) async throws -> Result? {
    stop()
    let task = Task { [self, last] in
      await last.value
      guard let model else { return nil as Result? }
      state.phase = .lent
      defer { state.phase = .ready }
      return try await use(model)
    }
    last = Task { _ = try? await task.value }
    return try await withTaskCancellationHandler { try await task.value } onCancel: { task.cancel() }
  }

  /// The refused text is in the input field again.
  public func takeUnsent() { state.unsent = nil }

  private func stop(_ why: String) {
    if stopping == nil { stopping = why }
    session?.stop()
  }

  /// Runs `work` after what is under way; `stop`: the answer that is being written shall end for it.
  @discardableResult
  private func later(stop why: String? = nil, _ work: @escaping @MainActor () async -> Void) -> Task<Void, Never> {
    if let why { stop(why) }
    let task = Task { [last] in
      await last.value
      await work()
    }
    last = task
    return task
  }

  private func load(_ bundle: String?) async {
    unload()
    guard let bundle else {
      state = ChatState(phase: .noBundle)
      return
    }
    state = ChatState(phase: .loading, bundle: bundle)
    do {
      let chosen = settings.settings
      loadedThreads = chosen.threads
      let opened = try await library.open(folderOf(bundle), threads: chosen.threads, checkHashes: false)
      model = opened
      let record = saved.read().flatMap { $0.bundle == bundle ? $0 : nil }
      await restore(opened, record ?? ChatRecord(bundle: bundle, system: chosen.systemPrompt, turns: []))
      state = ChatState(
        phase: .ready, bundle: bundle, canChat: opened.canChat, turns: record?.turns ?? [], unsent: record?.unsent)
    } catch {
      unload()
      state = ChatState(phase: .failed, bundle: bundle, error: sentence(of: error))
    }
  }

  private func restore(_ model: any OpenModel, _ record: ChatRecord) async {
    if let cache = saved.cache(of: record) {
      begin(model, record.system, [])
      // A cache that cannot be read, of an older version or a full disk, is no loss: the turns are read again.
      if (try? await session?.restore(from: cache)) != nil { return }
    }
    begin(model, record.system, record.turns)
  }

  private func begin(_ model: any OpenModel, _ systemPrompt: String?, _ turns: [Turn]) {
    let words = systemPrompt?.trimmingCharacters(in: .whitespacesAndNewlines) ?? ""
    system = words.isEmpty ? nil : systemPrompt
    session = nil  // its memory goes before the next one's comes
    session = model.session(instructions: system, history: turns.map(\.message))
    unsaved = false
  }

  private func unload() {
    session = nil
    model = nil
  }

  private func write(_ asked: String) async {
    guard let session else { return }
    if let stopping {
      finish(stopping)
    } else {
      await answer(session, asked)
    }
    keepTurns()
  }

  private func answer(_ session: any OpenSession, _ asked: String) async {
    unsaved = true
    var meter = Meter(began: clock())
    do {
      try await session.answer(to: asked, settings.settings.config) { piece in
        state.turns[state.turns.count - 1].append(piece)
        state.live = meter.count(piece, now: clock())
        if stopping != nil { session.stop() }  // also where it was asked before the session had begun
      }
      let statistics = try await session.statistics
      let end = statistics?.finishReason ?? ""
      if let statistics { state.live = Live(statistics) }
      finish(end == End.stopped ? stopping ?? end : end)
    } catch {
      finish(End.failed)
      state.error = sentence(of: error)
    }
  }

  /// The answer counts as far as it was delivered; a question without any answer was never asked.
  private func finish(_ end: String) {
    let index = state.turns.count - 1
    if state.turns[index].runs.isEmpty && [End.failed, End.stopped, End.left].contains(end) {
      state.unsent = state.turns[index - 1].text
      state.turns.removeLast(2)
    } else {
      state.turns[index].end = end
    }
    state.phase = .ready
  }

  private func save() async {
    guard let session, unsaved, let record else { return }
    do {
      try await saved.write(record, cacheOf: session)
      unsaved = false
    } catch {
      state.error = Word.errorNotSaved(reason(of: error))
    }
  }

  private func keepTurns() {
    guard let record else { return }
    do {
      try saved.write(record)
    } catch {
      state.error = Word.errorNotSaved(reason(of: error))
    }
  }

  /// The chat as it stands.
  private var record: ChatRecord? {
    settings.bundle.map { ChatRecord(bundle: $0, system: system, turns: state.turns, unsent: state.unsent) }
  }
}
