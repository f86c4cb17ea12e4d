import Foundation

/// What the screens share; it lives as long as the process. To make one costs nothing and changes nothing: SwiftUI may make
/// several of which it keeps one. `begin` starts that one's work.
@MainActor
public final class Parts {
  /// What the user set.
  public let settings: SettingsStore
  /// The chat.
  public let chat: ChatModel
  /// The bundles.
  public let bundles: BundlesModel
  /// The benchmark.
  public let benchmark: BenchmarkModel

  private let folder: URL
  private var begun: Task<Void, Never>?

  /// Keeps everything in `folder` and `defaults`. `device` names the device for the benchmark's report, a line each, and
  /// `power` says what slows it.
  public init(
    _ library: any Library, folder: URL, defaults: UserDefaults, device: [String],
    power: @escaping @MainActor () -> Power? = { nil }
  ) {
    self.folder = folder
    let installed = BundleFolder(folder: folder.appending(path: "bundles"), library: library)
    settings = SettingsStore(defaults)
    chat = ChatModel(library, folderOf: installed.path, settings: settings, savedIn: folder.appending(path: "chats"))
    bundles = BundlesModel(installed, settings: settings, chat: chat)
    benchmark = BenchmarkModel(chat, settings: settings, device: device, power: power)
  }

  /// Sweeps what an ended process left, lists the bundles, and loads the chosen one; once.
  @discardableResult
  public func begin() -> Task<Void, Never> {
    if let begun { return begun }
    let task = Task { [bundles, chat, folder] in
      await bundles.begin(in: folder)
      chat.begin()
    }
    begun = task
    return task
  }

  /// Whether the device should stay awake: an answer is written, the benchmark runs, or a bundle comes in.
  public var isBusy: Bool { [.writing, .lent].contains(chat.state.phase) || bundles.importing != nil }

  /// The user has left the app, which may be ended at any moment now. The task ends when everything is saved.
  @discardableResult
  public func leave() -> Task<Void, Never> {
    benchmark.cancel()
    return chat.leave()
  }

  /// The user is back.
  @discardableResult
  public func comeBack() -> Task<Void, Never> { chat.comeBack() }

  /// The system has little memory left. What is on the screen goes on; what is not gives the model back.
  @discardableResult
  public func memoryIsShort(onScreen: Bool) -> Task<Void, Never> { onScreen ? chat.saveSoon() : chat.putModelAway() }
}
