import Foundation
import Observation
import StreamFuseCore

/// The bundles screen: chooses, downloads, imports and deletes bundles. Downloads and imports continue while other
/// screens are shown.
@MainActor @Observable
public final class BundlesModel {
  /// The bundles on this device; nil until the disk is read.
  public private(set) var installed: [InstalledBundle]?
  /// The progress of the import; nil if none runs.
  public private(set) var importing: BundleProgress?
  /// The result of the last action, to show; nil if there is none.
  public private(set) var message: String?
  /// The bundles of the catalogue that was loaded last, and after them those that are being downloaded from another one.
  public private(set) var offers: [Offer] = []
  /// Whether the publisher's server is being asked.
  public private(set) var isAsking = false

  private let store: BundleStore
  private let library: any Library
  private let settings: SettingsStore
  private let chat: ChatModel
  @ObservationIgnored private var task: Task<Void, Never>?
  @ObservationIgnored private var downloads: [String: Task<Void, Never>] = [:]
  /// The states of running downloads, by the ids of their entries.
  private var running: [String: OfferState] = [:]
  /// The last `refresh`, which the next one waits for.
  @ObservationIgnored private var refreshing: Task<Void, Never>?

  /// The bundles of a store, for a chat.
  init(_ store: BundleStore, library: any Library, settings: SettingsStore, chat: ChatModel) {
    self.store = store
    self.library = library
    self.settings = settings
    self.chat = chat
  }

  /// The name of the bundle in use.
  public var chosen: String? { settings.bundle }

  /// The address of the catalogue that was asked for last.
  public var catalog: String { settings.catalog }

  /// Whether a download or an import runs.
  var isBusy: Bool { importing != nil || !running.isEmpty }

  /// Lists the bundles, and deletes what interrupted imports left. Excludes `folder`, which contains everything that
  /// the app stores, from backups: bundles are large and can be downloaded again.
  func begin(in folder: URL) async {
    await FileQueue("home").run {
      var home = folder
      try? FileManager.default.createDirectory(at: home, withIntermediateDirectories: true)
      var values = URLResourceValues()
      values.isExcludedFromBackup = true
      try? home.setResourceValues(values)
    }
    await refresh()
    await store.sweep()
  }

  /// Uses a bundle, in a new chat.
  @discardableResult
  public func choose(_ name: String) -> Task<Void, Never> {
    Task {
      await chat.open(name).value
      await refresh()
    }
  }

  /// Loads the catalogue at an address; nil if one is being loaded already.
  @discardableResult
  public func ask(_ address: String) -> Task<Void, Never>? {
    guard !isAsking else { return nil }
    settings.catalog = address.trimmingCharacters(in: .whitespacesAndNewlines)
    isAsking = true
    message = nil
    return Task {
      do {
        let entries = try await store.catalog(address).entries
        let others = offers.filter { offer in
          running[offer.entry.id] != nil && !entries.contains { $0.id == offer.entry.id }
        }
        offers = entries.map { Offer(entry: $0) } + others
        await refresh()
        if entries.isEmpty { message = Word.catalogEmpty() }
      } catch {
        message = sentence(of: error)
      }
      isAsking = false
    }
  }

  /// Downloads a published bundle, or resumes its download; nil if it is being downloaded already. It is used if no
  /// other bundle is in use.
  @discardableResult
  public func download(_ entry: CatalogEntry) -> Task<Void, Never>? {
    guard running[entry.id] == nil else { return nil }
    step(entry, .downloading(0))
    let task = Task {
      var failure: String?
      do {
        let bundle = try await store.download(entry) { progress in
          switch progress {
          case .receiving(let done, _): await self.step(entry, .downloading(done))
          case .checking: await self.step(entry, .checking)
          }
        }
        if settings.bundle == nil { await chat.open(bundle.name).value }
      } catch is CancellationError {
      } catch {
        failure = sentence(of: error)
      }
      running[entry.id] = nil
      show(entry, .available, failure)
      await refresh()
    }
    downloads[entry.id] = task
    return task
  }

  /// Pauses a download; what has arrived is kept.
  public func pause(_ entry: CatalogEntry) { downloads[entry.id]?.cancel() }

  /// Deletes what has arrived of a download.
  @discardableResult
  public func discard(_ entry: CatalogEntry) -> Task<Void, Never> {
    Task {
      downloads[entry.id]?.cancel()
      await downloads[entry.id]?.value
      do {
        try await store.discard(entry)
        show(entry, .available)
      } catch {
        show(entry, .available, sentence(of: error))
      }
      await refresh()
    }
  }

  /// Imports the bundle in a folder and uses it; nil if another import runs.
  @discardableResult
  public func take(_ folder: URL) -> Task<Void, Never>? {
    guard importing == nil else { return nil }
    importing = .receiving(0, of: 0)
    message = nil
    let lent = LentFolder(folder)
    let task = Task {
      do {
        let source = FolderSource(folder) { place, body in
          if place == folder { try lent.read(body) } else { try lent.read(place, body) }
        }
        let bundle = try await withTaskCancellationHandler {
          try await store.importBundle(source) { await self.importStep($0) }
        } onCancel: {
          lent.cancel()
        }
        await chat.open(bundle.name).value
        message = Word.imported(bundle.name)
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

  /// Cancels the import; nothing is kept.
  public func cancel() { task?.cancel() }

  /// Shows an error of the file picker.
  public func report(_ error: any Error) { message = sentence(of: error) }

  /// Removes a bundle from this device.
  @discardableResult
  public func delete(_ name: String) -> Task<Void, Never> {
    Task {
      if name == settings.bundle { await chat.open(nil).value }  // its files are in use
      do {
        try await store.delete(name)
        await chat.forget(name)
        message = Word.deleted(name)
      } catch {
        message = Word.errorDelete(name)
      }
      await refresh()
    }
  }

  private func importStep(_ progress: BundleProgress) { importing = progress }

  private func step(_ entry: CatalogEntry, _ state: OfferState) {
    running[entry.id] = state
    show(entry, state)
  }

  private func show(_ entry: CatalogEntry, _ state: OfferState, _ error: String? = nil) {
    for place in offers.indices where offers[place].entry.id == entry.id {
      offers[place].state = state
      offers[place].error = error
    }
  }

  private func stateOf(_ entry: CatalogEntry, _ installed: [InstalledBundle]) async -> OfferState {
    if installed.contains(where: { $0.id == entry.id }) { return .installed }
    if let reason = entry.unsupportedReason(backends: library.backends) { return .unsupported(reason) }
    let here = await store.receivedBytes(entry)
    return here > 0 ? .paused(here) : .available
  }

  /// Updates the installed bundles and the states of the offers from the disk, after refreshes that are under way.
  private func refresh() async {
    let task = Task { [refreshing] in
      await refreshing?.value
      await readDisk()
    }
    refreshing = task
    await task.value
  }

  private func readDisk() async {
    let installed = await store.list()
    var states: [String: OfferState] = [:]
    for offer in offers { states[offer.id] = await stateOf(offer.entry, installed) }
    self.installed = installed
    for place in offers.indices {
      let entry = offers[place].entry
      if let state = running[entry.id] ?? states[offers[place].id] { offers[place].state = state }
    }
  }
}
