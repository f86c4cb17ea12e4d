import Foundation

/// A bundle on this device.
public struct Installed: Sendable, Equatable, Identifiable {
  /// Its name, and that of its folder.
  public let name: String
  /// How large its files are together.
  public let bytes: Int64
  /// The name.
  public var id: String { name }
}

/// What an import may bring at most. The largest bundles that phones run have a few dozen files and a few gigabytes.
struct ImportLimits: Sendable {
  var files = 1000
  var bytes: Int64 = 16 << 30
  var depth = 10
}

/// How far an import is.
public enum ImportProgress: Sendable, Equatable {
  /// Bytes so far, of so many.
  case copying(Int64, of: Int64)
  /// The library reads it.
  case checking

  /// What the screen says.
  public var text: String {
    switch self {
    case .copying(let done, let total): Word.copyingOf(size(done), size(total))
    case .checking: Word.checking()
    }
  }
}

/// Bytes as people write them.
public func size(_ bytes: Int64) -> String { ByteCountFormatter.string(fromByteCount: bytes, countStyle: .file) }

/// The bundles in the app's own folder. One that is listed is whole: it took its name when it had been checked.
struct BundleFolder: Sendable {
  private static let unfinished = ".unfinished"
  /// The first part of the names of what this object has not finished; a sweep leaves those alone.
  private let own = "\(Self.unfinished)-\(UUID().uuidString)"

  /// Where the bundles are.
  let folder: URL
  /// What checks them.
  let library: any Library
  /// What an import may bring.
  var limits = ImportLimits()
  /// Where all but imports works on files.
  private let queue = FileQueue("bundles")
  /// Where imports work on files, which takes minutes.
  private let imports = FileQueue("imports")

  /// The bundles in a folder, which `library` checks.
  init(folder: URL, library: any Library, limits: ImportLimits = ImportLimits()) {
    self.folder = folder
    self.library = library
    self.limits = limits
  }

  private var files: FileManager { .default }

  /// Removes what a process left that ended in the middle, and keeps `home`, where all is, out of the device's backups.
  func sweep(_ home: URL) async {
    await queue.run {
      var home = home
      try? files.createDirectory(at: home, withIntermediateDirectories: true)
      var values = URLResourceValues()
      values.isExcludedFromBackup = true
      try? home.setResourceValues(values)
      for name in names() where name.hasPrefix(Self.unfinished) && !name.hasPrefix(own) { try? files.removeItem(at: path(name)) }
    }
  }

  /// All bundles by name.
  func list() async -> [Installed] {
    await queue.run {
      names().filter { !$0.hasPrefix(".") && isFolder(path($0)) }.sorted().map { name in
        let paths = (try? files.subpathsOfDirectory(atPath: path(name).path)) ?? []
        return Installed(name: name, bytes: paths.compactMap { fileSize(path(name).appending(path: $0)) }.reduce(0, +))
      }
    }
  }

  /// Where a bundle lies.
  func path(_ name: String) -> URL { folder.appending(path: name, directoryHint: .isDirectory) }

  /// Removes a bundle.
  func delete(_ name: String) async throws {
    await library.removeCaches(of: path(name))
    let doomed = path("\(own)-\(UUID().uuidString)")
    do {
      try await queue.run {
        try files.moveItem(at: path(name), to: doomed)  // first, so that a bundle is there, or it is not
        try files.removeItem(at: doomed)
      }
    } catch {
      throw AppError(Word.errorDelete(name))
    }
  }

  /// Copies, checks by the library, and lists the bundle in a folder that the user chose; its name. Where it fails or is
  /// cancelled nothing is left.
  func take(_ source: URL, report: @escaping @MainActor @Sendable (ImportProgress) -> Void) async throws -> String {
    let copied = path("\(own)-\(UUID().uuidString)")
    do {
      try await copy(source, to: copied, report)
      await report(.checking)
      _ = try await library.open(copied, threads: nil, checkHashes: true)
      try Task.checkCancellation()
      return try await queue.run {
        let name = freeName(source.lastPathComponent)
        try files.moveItem(at: copied, to: path(name))
        return name
      }
    } catch {
      await imports.run { try? files.removeItem(at: copied) }
      throw error
    }
  }

  /// Copies on the queue of imports; what is copied meanwhile is reported as often as somebody looks.
  private func copy(
    _ source: URL, to target: URL, _ report: @escaping @MainActor @Sendable (ImportProgress) -> Void
  ) async throws {
    let progress = AsyncStream<ImportProgress>.makeStream(bufferingPolicy: .bufferingNewest(1))
    let reporting = Task { for await step in progress.stream { await report(step) } }
    let lent = LentFolder(source)
    let result: Result<Void, any Error> = await withTaskCancellationHandler {
      await imports.run {
        Result {
          try lent.read { source in
            let wanted = try root(of: source)
            try copy(try entries(of: wanted), of: wanted, to: target, lent) { progress.continuation.yield($0) }
          }
        }
      }
    } onCancel: {
      lent.cancel()
    }
    progress.continuation.finish()
    await reporting.value
    try Task.checkCancellation()  // whatever the file provider calls it
    try result.get()
  }

  /// The chosen folder, or the one in it that holds the manifest: what unpacks a zip often adds a folder around it.
  private func root(of source: URL) throws -> URL {
    let inside = try files.contentsOfDirectory(at: source, includingPropertiesForKeys: nil).filter(isFolder)
    for folder in [source] + inside where files.fileExists(atPath: folder.appending(path: "manifest.json").path) {
      return folder
    }
    throw AppError(Word.errorNoManifest(source.lastPathComponent))
  }

  /// Paths and sizes of all files in a folder. Links are refused: they may lead anywhere.
  private func entries(of root: URL) throws -> [(path: String, bytes: Int64)] {
    var found: [(path: String, bytes: Int64)] = []
    var folders = [""]
    while let folder = folders.popLast() {
      for name in try files.contentsOfDirectory(atPath: root.appending(path: folder).path) where !name.hasPrefix(".") {
        let path = folder + name
        let place = root.appending(path: path)
        if let bytes = fileSize(place) {
          found.append((path, bytes))
        } else if isFolder(place) && path.split(separator: "/").count < limits.depth {
          folders.append(path + "/")
        } else {
          throw AppError(Word.errorPath(String(path.prefix(100))))
        }
        if found.count + folders.count > limits.files { throw AppError(Word.errorManyFiles(limits.files)) }
      }
    }
    return found
  }

  private func copy(
    _ found: [(path: String, bytes: Int64)], of source: URL, to target: URL, _ lent: LentFolder,
    _ report: (ImportProgress) -> Void
  ) throws {
    let total = found.map(\.bytes).reduce(0, +)
    if total > limits.bytes { throw AppError(Word.errorLarge(limits.bytes >> 20)) }
    try files.createDirectory(at: target, withIntermediateDirectories: true)
    let free = try files.attributesOfFileSystem(forPath: target.path)[.systemFreeSize] as? NSNumber
    let spare: Int64 = 64 << 20  // so that the device stays usable
    if let free, total > free.int64Value - spare { throw AppError(Word.errorNoRoom()) }
    var done: Int64 = 0
    for file in found {
      let copy = target.appending(path: file.path)
      try files.createDirectory(at: copy.deletingLastPathComponent(), withIntermediateDirectories: true)
      try Data().write(to: copy, options: .withoutOverwriting)
      try lent.read(source.appending(path: file.path)) { place in
        let input = try FileHandle(forReadingFrom: place)
        let output = try FileHandle(forWritingTo: copy)
        defer {
          try? input.close()
          try? output.close()
        }
        while let bytes = try input.read(upToCount: 4 << 20), !bytes.isEmpty {
          try output.write(contentsOf: bytes)
          done += Int64(bytes.count)
          if done > limits.bytes { throw AppError(Word.errorLarge(limits.bytes >> 20)) }  // it grows meanwhile
          report(.copying(done, of: total))
          try Task.checkCancellation()
        }
      }
    }
  }

  /// A plain name that no bundle has.
  private func freeName(_ wanted: String) -> String {
    let plain = wanted.map { $0.isLetter || $0.isNumber || "._ -".contains($0) ? $0 : "_" }
    let cut = String(plain.prefix(60)).trimmingCharacters(in: CharacterSet(charactersIn: " ."))
    let base = cut.isEmpty ? "bundle" : cut
    var name = base, number = 1
    while files.fileExists(atPath: path(name).path) {
      number += 1
      name = "\(base) \(number)"
    }
    return name
  }

  private func names() -> [String] { (try? files.contentsOfDirectory(atPath: folder.path)) ?? [] }

  /// A link to a folder is none.
  private func isFolder(_ url: URL) -> Bool {
    (try? files.attributesOfItem(atPath: url.path))?[.type] as? FileAttributeType == .typeDirectory
  }

  /// Nil where there is no file; a link to one is none.
  private func fileSize(_ url: URL) -> Int64? {
    guard let facts = try? files.attributesOfItem(atPath: url.path), facts[.type] as? FileAttributeType == .typeRegular
    else { return nil }
    return (facts[.size] as? NSNumber)?.int64Value
  }
}
