import Foundation
import StreamFuseCore

/// The models of all screens, for the lifetime of the process. Its initializer has no side effects, because SwiftUI may
/// create several and keep one; `begin` starts the work.
@MainActor
public final class Parts {
  /// What the user set.
  public let settings: SettingsStore
  /// The open chat.
  public let chat: ChatModel
  /// All chats.
  public let chats: ChatList
  /// The bundles.
  public let bundles: BundlesModel
  /// The benchmark.
  public let benchmark: BenchmarkModel
  /// The check of this device.
  public let check: DeviceCheck

  private let folder: URL
  private var begun: Task<Void, Never>?

  /// The app over a library.
  ///
  /// - Parameters:
  ///   - folder: where bundles, chats and remembered answers are stored.
  ///   - defaults: where settings are stored.
  ///   - device: lines that describe the device in the benchmark's report.
  ///   - power: returns the state of the device that the report names; nil if the system does not report it.
  ///   - transport: makes the requests of downloads.
  public init(
    _ library: any Library, folder: URL, defaults: UserDefaults, device: [String],
    power: @escaping @MainActor () -> Power? = { nil }, transport: any BundleTransport = URLSessionTransport()
  ) {
    self.folder = folder
    let store = BundleStore(
      directory: folder.appending(path: "bundles"), transport: transport, removeCaches: { await library.removeCaches(of: $0, unlessUsedBy: $1) },
      check: { _ = try await library.open($0, threads: nil, memory: nil, checkHashes: true) })
    settings = SettingsStore(defaults)
    let saved = ChatStore(folder: folder.appending(path: "chats"))
    chat = ChatModel(
      library, folderOf: { store.folder($0) }, memory: MemoryFolder(folder.appending(path: "memory")), settings: settings, store: saved)
    chats = ChatList(saved, chat)
    bundles = BundlesModel(store, library: library, settings: settings, chat: chat)
    benchmark = BenchmarkModel(chat, settings: settings, device: device, power: power)
    check = DeviceCheck(chat)
  }

  /// Sweeps what an ended process left, lists the bundles, and loads the chosen one; once.
  @discardableResult
  public func begin() -> Task<Void, Never> {
    if let begun { return begun }
    let task = Task { [bundles, chat, chats, folder] in
      await chats.begin()
      await bundles.begin(in: folder)
      chat.begin()
    }
    begun = task
    return task
  }

  /// Whether the device should stay awake: an answer is written, the benchmark runs, or a bundle comes in.
  public var isBusy: Bool { [.writing, .lent].contains(chat.state.phase) || bundles.isBusy }

  /// The user has left the app, which may be ended at any moment now. An answer goes on for `grace`. The task ends when
  /// everything is saved.
  @discardableResult
  public func leave(grace: Duration = .zero) -> Task<Void, Never> {
    benchmark.cancel()
    return chat.leave(grace: grace)
  }

  /// The system gives no more time: the answer of a user who has left ends at its next token.
  public func endNow() { chat.endNow() }

  /// Asks in a new chat, once the model is loaded, also where it was unloaded because memory was short: this may be called
  /// before `comeBack`. A question that cannot be asked now is put into the input field. Returns whether it was asked.
  public func ask(_ question: String) async -> Bool {
    await begin().value
    await comeBack().value
    await chat.newChat().value
    if chat.send(question) { return true }
    chat.type(joined(question, chat.input))
    return false
  }

  /// The user is back.
  @discardableResult
  public func comeBack() -> Task<Void, Never> { chat.comeBack() }

  /// The system has little memory left. What is on the screen goes on; what is not gives the model back.
  @discardableResult
  public func memoryIsShort(onScreen: Bool) -> Task<Void, Never> { onScreen ? chat.saveSoon() : chat.putModelAway() }
}
