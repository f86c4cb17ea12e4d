import Foundation
import Observation
import StreamFuseCore

/// The chat, and the one model that the app has open. Its functions return at once; what they start runs one after
/// another, and model and files work on threads of their own.
@MainActor @Observable
public final class ChatModel {
  /// What the screen shows, but for the answer that is being written.
  public private(set) var state = ChatState()
  /// The answer that is being written.
  public let answer = AnswerModel()

  private let library: any Library
  private let folderOf: (String) -> URL
  private let settings: SettingsStore
  private let saved: SavedChats
  private let clock: @Sendable () -> Double

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
  /// Whether the model went because memory was short.
  @ObservationIgnored private var putAway = false

  /// A chat of which nothing is loaded.
  ///
  /// - Parameters:
  ///   - folderOf: where the bundle of a name lies.
  ///   - folder: where the chat is kept.
  ///   - clock: seconds.
  init(
    _ library: any Library, folderOf: @escaping (String) -> URL, settings: SettingsStore, savedIn folder: URL,
    clock: @escaping @Sendable () -> Double = { ProcessInfo.processInfo.systemUptime }
  ) {
    self.library = library
    self.folderOf = folderOf
    self.settings = settings
    self.saved = SavedChats(folder: folder)
    self.clock = clock
  }

  /// Loads the chosen bundle, and its chat.
  func begin() { later { await self.load(self.settings.bundle) } }

  /// Uses another bundle, in the chat that it had; nil: none.
  @discardableResult
  func open(_ bundle: String?) -> Task<Void, Never> {
    later(stop: End.stopped) { [self] in
      if bundle == settings.bundle && model != nil { return }
      await save()
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
    state.turns.append(.question(asked))
    state.begun = false
    state.error = nil
    answer.turn = Turn(role: .assistant)
    answer.live = Live()
    later { await self.write(asked) }
    return true
  }

  /// Ends the answer at its next token.
  public func stop() { stop(End.stopped) }

  /// Whether a new chat would delete something that was said.
  public var holdsWords: Bool { !state.turns.isEmpty }

  /// Forgets the conversation; the next one has the system prompt of the settings.
  @discardableResult
  public func newChat() -> Task<Void, Never> {
    later(stop: End.stopped) { [self] in
      guard let model, let bundle = settings.bundle else { return }
      await saved.clear(bundle)
      begin(model, settings.settings.systemPrompt, [])
      state.turns = []
      state.error = nil
      answer.live = nil
    }
  }

  /// Forgets the chat with a bundle that is deleted.
  func forget(_ bundle: String) async { await saved.clear(bundle) }

  /// The user has left the app: the answer ends here, and the chat is saved before the process may be killed.
  func leave() -> Task<Void, Never> { later(stop: End.left) { await self.save() } }

  /// Saves the chat after what is under way: the system may end the process.
  func saveSoon() -> Task<Void, Never> { later { await self.save() } }

  /// Memory is short while the user is elsewhere: the model goes, and comes back with the user.
  func putModelAway() -> Task<Void, Never> {
    later { [self] in
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
    later { [self] in
      guard putAway else { return }
      putAway = false
      await load(settings.bundle)
    }
  }

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
      let read = await saved.read(bundle)
      await restore(opened, read?.record ?? ChatRecord(bundle: bundle, system: chosen.systemPrompt, turns: []), read?.cache)
      state = ChatState(
        phase: .ready, bundle: bundle, canChat: opened.canChat, turns: read?.record.turns ?? [], unsent: read?.record.unsent)
    } catch {
      unload()
      state = ChatState(phase: .failed, bundle: bundle, error: sentence(of: error))
    }
  }

  private func restore(_ model: any OpenModel, _ record: ChatRecord, _ cache: URL?) async {
    if let cache {
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
    answer.live = nil
  }

  private func write(_ asked: String) async {
    guard let session else { return }
    if let stopping {
      finish(stopping)
    } else {
      await write(session, asked)
    }
    await keepTurns()
  }

  private func write(_ session: any OpenSession, _ asked: String) async {
    unsaved = true
    let pieces = PieceBuffer(clock: clock) { [weak self] in self?.take($0, $1) }
    let ask = session.ask(asked, settings.settings.config)  // here, so that every later stop is one of this answer
    do {
      try await ask { pieces.add($0) }
      pieces.flush()
      let statistics = try await session.statistics
      let end = statistics?.finishReason ?? ""
      if let statistics { answer.live = Live(statistics) }
      finish(end == End.stopped ? stopping ?? end : end)
    } catch {
      pieces.flush()
      finish(End.failed)
      state.error = sentence(of: error)
    }
  }

  private func take(_ pieces: [Piece], _ live: Live) {
    answer.take(pieces, live)
    if !state.begun { state.begun = true }
  }

  /// The answer counts as far as it was delivered; a question without any answer was never asked. The library sees it so
  /// too: a token may have no text of its own, and counts.
  private func finish(_ end: String) {
    guard var turn = answer.turn else { return }
    answer.turn = nil
    if (answer.live?.tokens ?? 0) == 0 && [End.failed, End.stopped, End.left].contains(end) {
      state.unsent = state.turns.removeLast().text
    } else {
      turn.end = end
      state.turns.append(turn)
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

  private func keepTurns() async {
    guard let record else { return }
    do {
      try await saved.write(record)
    } catch {
      state.error = Word.errorNotSaved(reason(of: error))
    }
  }

  /// The chat as it stands.
  private var record: ChatRecord? {
    settings.bundle.map { ChatRecord(bundle: $0, system: system, turns: state.turns, unsent: state.unsent) }
  }
}
