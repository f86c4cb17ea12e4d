import Foundation

/// The bundles in a folder of the app: lists, downloads, imports and deletes them.
///
///     let store = BundleStore(directory: folder, publicKey: "d75a98…")
///     let entry = try await store.catalog("https://models.example/catalog.json").entries[0]
///     let bundle = try await store.download(entry) { print($0) }
///     let model = try await StreamFuse.load(from: bundle.folder) { $0.checkHashes = false }
///
/// A bundle that is listed is whole: it gets its name, in one step, after everything in it has been checked and is on
/// the disk. Work on files runs on queues of its own. Any number of stores may use a folder at once, also in several
/// processes.
public actor BundleStore {
  /// Where the bundles are, each in a folder of its own. Choose a folder that backups leave out and, on iOS, not in an
  /// App Group's container: the system ends an app that is suspended while it holds a file lock there.
  public nonisolated let directory: URL

  /// A bundle that fails with one of these is of no use, however often it is tried.
  private static let refusals: [StreamFuseError.Code] = [.badFile, .badProgram, .badTables, .missingOperator]
  private static let spareBytes: Int64 = 64 << 20  // so that the device stays usable

  private let limits: BundleLimits
  private let downloader: Downloader
  private let freeBytes: @Sendable (URL) throws -> Int64
  private let removeCaches: @Sendable (URL, [URL]) async -> Void
  private let checkManifest: @Sendable (URL) async throws -> Void
  private let check: @Sendable (URL) async throws -> Void
  let files = FileWorker()

  /// A store with its own check of new bundles. The module `StreamFuse` has an initializer that needs none.
  ///
  /// - Parameters:
  ///   - directory: where the bundles are stored; created if it is missing, and excluded from backups.
  ///   - limits: what a bundle may have at most.
  ///   - transport: makes the requests of downloads.
  ///   - removeCaches: removes what `check` stored outside of a bundle's folder, which is deleted next, unless the bundle
  ///     in one of the other folders uses it too. A folder may have an incomplete bundle, or none.
  ///   - checkManifest: called with the folder of a download once it contains the manifest and its signature, before
  ///     any other file is requested; throws to refuse the bundle.
  ///   - check: called with the folder of a bundle before it is installed; throws to refuse it.
  public init(
    directory: URL, limits: BundleLimits = BundleLimits(), transport: any BundleTransport = URLSessionTransport(),
    removeCaches: @escaping @Sendable (URL, [URL]) async -> Void = { _, _ in },
    checkManifest: @escaping @Sendable (URL) async throws -> Void = { _ in },
    check: @escaping @Sendable (URL) async throws -> Void
  ) {
    self.init(
      directory, limits, Downloader(transport: transport), freeBytes: availableBytes, removeCaches: removeCaches,
      checkManifest: checkManifest, check: check)
  }

  init(
    _ directory: URL, _ limits: BundleLimits, _ downloader: Downloader,
    freeBytes: @escaping @Sendable (URL) throws -> Int64,
    removeCaches: @escaping @Sendable (URL, [URL]) async -> Void,
    checkManifest: @escaping @Sendable (URL) async throws -> Void,
    check: @escaping @Sendable (URL) async throws -> Void
  ) {
    self.directory = directory
    self.limits = limits
    self.downloader = downloader
    self.freeBytes = freeBytes
    self.removeCaches = removeCaches
    self.checkManifest = checkManifest
    self.check = check
  }

  /// The installed bundles, sorted by name.
  public func list() async -> [InstalledBundle] {
    await files.run {
      names().filter { !$0.hasPrefix(".") && isFolder(folder($0)) }.sorted().map { installed(at: folder($0)) }
    }
  }

  /// Where the bundle of that name is, or would be. Does not read the disk.
  public nonisolated func folder(_ name: String) -> URL { directory.appending(path: name, directoryHint: .isDirectory) }

  /// Reads a catalogue, which `streamfuse bundle catalog` wrote. `address` begins with `https://`.
  ///
  /// Throws `StreamFuseError`: `network` if it cannot be downloaded, `badFile` if it is not valid.
  public func catalog(_ address: String) async throws -> Catalog {
    let url = try allowedAddress(address)
    await downloader.transport.discard(url)  // a response that is stored may be days old
    let json = try await downloader.get(url, most: Catalog.mostBytes)
    return try Catalog.parse(json, address: url.absoluteString, limits: limits)
  }

  /// Downloads a bundle and installs it. What has arrived is kept if the connection fails or the task is cancelled, and
  /// the next download of the same contents, also in another process, goes on from there. A failed connection is tried
  /// again for a few seconds.
  ///
  /// The manifest and its signature are downloaded first. No other file is requested until the signature is valid and
  /// the manifest lists the same files as the catalogue. The size and hash of each file are checked while it is
  /// received.
  ///
  /// Returns at once if the contents are in the store already, under any name. If another bundle has the entry's name,
  /// a number is added to it. `progress` is called with the latest state; states that arrive while it runs are skipped.
  ///
  /// Throws `StreamFuseError`: `network`; `noSpace`, before anything is downloaded or where the disk becomes full;
  /// `busy` if the same contents are being downloaded; `badFile` for another file than that of the catalogue; what the
  /// check throws, and then nothing is kept.
  public func download(
    _ entry: CatalogEntry, progress: @escaping @Sendable (BundleProgress) async -> Void = { _ in }
  ) async throws -> InstalledBundle {
    if let here = await installed(entry) { return here }
    return try await reporting(progress) { report in
      let folder = self.downloadFolder(entry)
      guard let claim = try await self.files.run({ try Claim(folder) }) else { throw self.busy(entry) }
      if let here = await self.installed(entry) {  // another store has installed it since the first look
        await self.remove(claim.folder)
        return withExtendedLifetime(claim) { here }
      }
      let content = claim.folder.appending(path: Self.content, directoryHint: .isDirectory)
      try await self.receive(entry, claim.folder, report)
      report(.checking)
      try await self.refusing(claim.folder) { try await self.check(content) }
      try Task.checkCancellation()
      let bundle = try await self.install(content, entry.name)
      await self.remove(claim.folder)
      return withExtendedLifetime(claim) { bundle }
    }
  }

  private func installed(_ entry: CatalogEntry) async -> InstalledBundle? {
    await list().first { $0.id == entry.id }
  }

  /// The number of bytes that an interrupted download has stored, with those that the transport has.
  public func receivedBytes(_ entry: CatalogEntry) async -> Int64 {
    let folder = downloadFolder(entry)
    var bytes = await files.run { received(folder) }
    for rest in (try? await missing(entry, folder)) ?? [] {
      bytes += min(rest.bytes, await downloader.transport.heldBytes(rest.url, from: rest.offset))
    }
    return bytes
  }

  /// Deletes what an interrupted download has stored, and what the transport has of it; does nothing if there is none.
  /// Throws `StreamFuseError` (`.busy`) while it is being downloaded, and the file system's error if it cannot be deleted.
  public func discard(_ entry: CatalogEntry) async throws {
    let folder = downloadFolder(entry)
    guard let claim = try await files.run({ try Claim(folder) }) else { throw busy(entry) }
    for path in entry.files.keys { try await downloader.transport.discard(entry.address(of: path)) }
    await forget(folder.appending(path: Self.content))
    try await files.run { try withExtendedLifetime(claim) { try FileManager.default.removeItem(at: folder) } }
  }

  /// Copies a bundle and installs it. If it fails or is cancelled, nothing is kept.
  ///
  /// Throws `StreamFuseError`: `badFile` for a folder without a bundle, with links or beyond the limits; `noSpace`; and
  /// what the check throws.
  public func importBundle(
    _ source: FolderSource, progress: @escaping @Sendable (BundleProgress) async -> Void = { _ in }
  ) async throws -> InstalledBundle {
    try await reporting(progress) { report in
      try await self.temporary { folder in
        let content = folder.appending(path: Self.content, directoryHint: .isDirectory)
        let limits = self.limits, directory = self.directory, freeBytes = self.freeBytes
        try await FileWorker().run {
          let free = try freeBytes(directory) - Self.spareBytes
          try source.copy(to: content, limits: limits, freeBytes: free) { report(.receiving($0, of: $1)) }
        }
        try Task.checkCancellation()
        report(.checking)
        do {
          try await self.check(content)
          try Task.checkCancellation()
          return try await self.install(content, source.folder.lastPathComponent)
        } catch {
          await self.forget(content)
          throw error
        }
      }
    }
  }

  /// Deletes a bundle, and what is kept elsewhere for it. Release its model first: task adapters and the self-test read
  /// files of the folder on first use.
  ///
  /// Throws `StreamFuseError` (`.badArgument`) for a name that no bundle can have, and the file system's error if there
  /// is no such bundle or it cannot be deleted.
  public func delete(_ name: String) async throws {
    guard isPlainPath(name, depth: 1), !name.hasPrefix(".") else {
      throw StreamFuseError(.badArgument, "\(name) is not the name of a bundle")
    }
    try await temporary { trash in
      let content = trash.appending(path: Self.content)
      try await self.files.run {
        // Renamed first: a bundle is there, or it is not.
        try FileManager.default.moveItem(at: self.folder(name), to: content)
        syncFolder(self.directory)
      }
      await self.forget(content)
    }
  }

  /// Deletes what interrupted imports and deletions left, and downloads that nobody continued for `keepDays`. Call it
  /// when the app starts. What runs at the moment is not touched.
  public func sweep(keepDays: Int = 7) async {
    let oldest = Date(timeIntervalSinceNow: Double(-keepDays) * 86_400)
    let old = await files.run {
      names().filter { $0.hasPrefix(Self.unfinished) || $0.hasPrefix(Self.partial) && newest(folder($0)) < oldest }
    }
    for name in old {
      guard let claim = await files.run({ try? Claim(folder(name)) }) else { continue }
      await forget(claim.folder.appending(path: Self.content))
      await remove(claim.folder)
    }
  }

  /// Removes what the check of a bundle stored outside of its folder, which is deleted next. Another bundle that uses it,
  /// installed or not, keeps it.
  private nonisolated func forget(_ bundle: URL) async {
    let others = await files.run {
      let all = names().map { $0.hasPrefix(".") ? folder($0).appending(path: Self.content) : folder($0) }
      return all.filter { $0.path != bundle.path }
    }
    await removeCaches(bundle, others)
  }

  /// Runs `work`; what it reports is passed on by another task, which skips what is out of date.
  private nonisolated func reporting(
    _ progress: @escaping @Sendable (BundleProgress) async -> Void,
    _ work: @Sendable (@escaping @Sendable (BundleProgress) -> Void) async throws -> InstalledBundle
  ) async throws -> InstalledBundle {
    let steps = AsyncStream<BundleProgress>.makeStream(bufferingPolicy: .bufferingNewest(1))
    let passing = Task { for await step in steps.stream { await progress(step) } }
    let result: Result<InstalledBundle, any Error>
    do {
      result = .success(try await work { steps.continuation.yield($0) })
    } catch {
      result = .failure(Task.isCancelled ? CancellationError() : error)  // whatever others call it
    }
    steps.continuation.finish()
    await passing.value
    return try result.get()
  }

  /// Downloads all files: first the manifest and its signature and, once they are checked, the others.
  private nonisolated func receive(
    _ entry: CatalogEntry, _ folder: URL, _ report: @escaping @Sendable (BundleProgress) -> Void
  ) async throws {
    try entry.needSmallManifest()
    let extra = try await storageBytes(entry, folder)
    try await files.run {
      let needed = entry.bytes - received(folder) + extra, free = try freeBytes(directory) - Self.spareBytes
      if needed > free { throw noSpace(needed: needed, free: free) }
    }
    let paths = entry.files.keys.sorted()
    var done: Int64 = 0
    for path in paths.filter(describingNames.contains) { done += try await receive(entry, folder, path, done, report) }
    let bundle = folder.appending(path: Self.content, directoryHint: .isDirectory)
    try await refusing(folder) {
      try await checkManifest(bundle)
      try await files.run { try entry.needListed(Data(contentsOf: bundle.appending(path: manifestName))) }
    }
    for path in paths.filter({ !describingNames.contains($0) }) {
      done += try await receive(entry, folder, path, done, report)
    }
  }

  /// The bytes that the transport stores besides those of the bundle: of one missing file at a time.
  private nonisolated func storageBytes(_ entry: CatalogEntry, _ folder: URL) async throws -> Int64 {
    var most: Int64 = 0
    for rest in try await missing(entry, folder) {
      most = max(most, await downloader.transport.storageBytes(rest.url, from: rest.offset, of: rest.bytes))
    }
    return most
  }

  /// What is missing of a download: for each file, its last bytes, from an offset on.
  private nonisolated func missing(
    _ entry: CatalogEntry, _ folder: URL
  ) async throws -> [(url: URL, offset: Int64, bytes: Int64)] {
    var found: [(url: URL, offset: Int64, bytes: Int64)] = []
    for (path, file) in entry.files {
      let (here, done) = await files.run {
        let content = fileSize(folder.appending(path: "\(Self.content)/\(path)"))
        return (content, fileSize(folder.appending(path: file.sha256 + Self.part)) ?? 0)
      }
      guard here != file.bytes && done < file.bytes else { continue }
      found.append((try entry.address(of: path), done, file.bytes - done))
    }
    return found
  }

  /// Runs a check, and deletes the download in `folder` if the check refuses the bundle.
  private nonisolated func refusing(_ folder: URL, _ check: @Sendable () async throws -> Void) async throws {
    do {
      try await check()
    } catch let error as StreamFuseError where Self.refusals.contains(error.code) {
      await forget(folder.appending(path: Self.content))
      await remove(folder)
      throw error
    }
  }

  /// Downloads one file and returns its size; `done` are the bytes of the files before it. Partial files are named by
  /// hash, so that a download can resume from another catalogue.
  private nonisolated func receive(
    _ entry: CatalogEntry, _ folder: URL, _ path: String, _ done: Int64,
    _ report: @escaping @Sendable (BundleProgress) -> Void
  ) async throws -> Int64 {
    guard let file = entry.files[path] else { return 0 }
    let target = folder.appending(path: "\(Self.content)/\(path)")
    if await files.run({ fileSize(target) }) != file.bytes {
      let part = folder.appending(path: file.sha256 + Self.part)
      try await downloader.complete(entry.address(of: path), part: part, expected: file) {
        report(.receiving(done + $0, of: entry.bytes))
      }
      try await files.run {
        try onDisk {
          let parent = target.deletingLastPathComponent()
          try FileManager.default.createDirectory(at: parent, withIntermediateDirectories: true)
          try? FileManager.default.removeItem(at: target)
          try FileManager.default.moveItem(at: part, to: target)
        }
      }
    }
    return file.bytes
  }
}

/// The free bytes of the disk that contains a folder, which is created if it is missing. On Apple's systems with those
/// that the system frees for what the user asks for.
@Sendable private func availableBytes(_ folder: URL) throws -> Int64 {
  try FileManager.default.createDirectory(at: folder, withIntermediateDirectories: true)
  #if canImport(Darwin)
    var fresh = folder
    var excluded = URLResourceValues()
    excluded.isExcludedFromBackup = true  // bundles are large, and can be downloaded again
    try? fresh.setResourceValues(excluded)
    fresh.removeAllCachedResourceValues()
    let values = try? fresh.resourceValues(forKeys: [.volumeAvailableCapacityForImportantUsageKey])
    if let bytes = values?.volumeAvailableCapacityForImportantUsage, bytes > 0 { return bytes }
  #endif
  let attributes = try FileManager.default.attributesOfFileSystem(forPath: folder.path)
  return (attributes[.systemFreeSize] as? NSNumber)?.int64Value ?? .max
}
