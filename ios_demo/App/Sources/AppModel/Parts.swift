import Foundation

/// What the screens share; it lives as long as the process.
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

  /// Keeps everything in `folder` and `defaults`. `device` names the device for the benchmark's report, a line each.
  public init(_ library: any Library, folder: URL, defaults: UserDefaults, device: [String]) {
    let installed = BundleFolder(folder: folder.appending(path: "bundles"), library: library)
    settings = SettingsStore(defaults)
    chat = ChatModel(library, folderOf: installed.path, settings: settings, savedIn: folder.appending(path: "chat"))
    bundles = BundlesModel(installed, settings: settings, chat: chat)
    benchmark = BenchmarkModel(chat, settings: settings, device: device)
  }

  /// The user has left the app, which may be ended at any moment now. The task ends when everything is saved.
  @discardableResult
  public func leave() -> Task<Void, Never> {
    benchmark.cancel()
    return chat.leave()
  }
}
