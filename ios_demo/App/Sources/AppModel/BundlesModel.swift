import Foundation
import Observation

/// The bundles screen: chooses, brings in and deletes bundles. An import goes on while other screens are shown.
@MainActor @Observable
public final class BundlesModel {
  /// The bundles on this device.
  public private(set) var installed: [Installed] = []
  /// The name of the one in use.
  public private(set) var chosen: String?
  /// How far an import is; nil where nothing comes in.
  public private(set) var importing: ImportProgress?
  /// What happened last.
  public private(set) var message: String?

  private let bundles: BundleFolder
  private let settings: SettingsStore
  private let chat: ChatModel
  @ObservationIgnored private var task: Task<Void, Never>?

  /// The bundles in a folder, for a chat.
  init(_ bundles: BundleFolder, settings: SettingsStore, chat: ChatModel) {
    self.bundles = bundles
    self.settings = settings
    self.chat = chat
  }

  /// Sweeps what an ended process left, and lists the bundles. `folder` holds everything that the app keeps, and is outside
  /// of the device's backups: bundles are large, and can be had again.
  func begin(in folder: URL) async {
    await bundles.sweep(folder)
    await refresh()
  }

  /// Uses a bundle, in a new chat.
  @discardableResult
  public func choose(_ name: String) -> Task<Void, Never> {
    Task {
      await chat.open(name).value
      await refresh()
    }
  }

  /// Copies the bundle in a folder and, where it is sound, uses it. One at a time.
  @discardableResult
  public func take(_ source: URL) -> Task<Void, Never>? {
    guard importing == nil else { return nil }
    importing = .copying(0, of: 0)
    message = nil
    let task = Task {
      do {
        let name = try await bundles.take(source) { self.importing = $0 }
        await chat.open(name).value
        message = Word.imported(name)
      } catch is CancellationError {
        message = Word.importCancelled()
      } catch {
        message = sentence(of: error)
      }
      importing = nil
      await refresh()
    }
    self.task = task
    return task
  }

  /// Ends the import; nothing is kept.
  public func cancel() { task?.cancel() }

  /// Says what the file picker could not do.
  public func report(_ error: any Error) { message = sentence(of: error) }

  /// Removes a bundle from this device.
  @discardableResult
  public func delete(_ name: String) -> Task<Void, Never> {
    Task {
      if name == settings.bundle { await chat.open(nil).value }  // its files are in use
      do {
        try await bundles.delete(name)
        await chat.forget(name)
        message = Word.deleted(name)
      } catch {
        message = sentence(of: error)
      }
      await refresh()
    }
  }

  private func refresh() async {
    installed = await bundles.list()
    chosen = settings.bundle
  }
}
