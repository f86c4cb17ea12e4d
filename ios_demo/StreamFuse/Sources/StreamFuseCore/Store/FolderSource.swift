import Foundation

/// A folder outside of the store with a bundle in it, for example one that the user picked.
public struct FolderSource: Sendable {
  /// Reads a folder or a file: calls the second argument once with the place where it is.
  public typealias Reader = @Sendable (URL, (URL) throws -> Void) throws -> Void

  /// The folder.
  public let folder: URL
  let read: Reader

  /// A folder whose files `read` gives: first the folder, and meanwhile each file. An app that gets the folder from
  /// another one passes a reader that coordinates with the file provider; the default reads what is there.
  public init(_ folder: URL, read: @escaping Reader = { place, body in try body(place) }) {
    self.folder = folder
    self.read = read
  }

  /// Copies the bundle in the folder to `target`, which is not there yet.
  func copy(to target: URL, limits: BundleLimits, freeBytes: Int64, report: (Int64, Int64) -> Void) throws {
    try read(folder) { folder in
      let root = try root(of: folder)
      let found = try entries(of: root, limits)
      let total = found.map(\.bytes).reduce(0, +)
      if total > limits.bytes { throw tooLarge(limits) }
      if total > freeBytes { throw noSpace(needed: total, free: freeBytes) }
      try FileManager.default.createDirectory(at: target, withIntermediateDirectories: true)
      var done: Int64 = 0
      report(0, total)  // iCloud may have to download the first file
      for file in found {
        let copy = target.appending(path: file.path)
        try onDisk {
          let parent = copy.deletingLastPathComponent()
          try FileManager.default.createDirectory(at: parent, withIntermediateDirectories: true)
          try Data().write(to: copy, options: .withoutOverwriting)
        }
        try read(root.appending(path: file.path)) { place in
          try append(place, to: copy) { block in
            done += Int64(block)
            if done > limits.bytes { throw tooLarge(limits) }  // it grows meanwhile
            report(done, total)
          }
        }
      }
    }
  }

  private func append(_ place: URL, to copy: URL, count: (Int) throws -> Void) throws {
    let input = try FileHandle(forReadingFrom: place)
    let output = try FileHandle(forWritingTo: copy)
    defer {
      try? input.close()
      try? output.close()
    }
    while let bytes = try input.read(upToCount: 4 << 20), !bytes.isEmpty {
      try onDisk { try output.write(contentsOf: bytes) }
      try count(bytes.count)
      try Task.checkCancellation()
    }
    try onDisk { try output.synchronize() }
  }

  /// The folder, or the one in it that holds the manifest: what unpacks a zip often adds a folder around it.
  private func root(of folder: URL) throws -> URL {
    let files = FileManager.default
    let inside = try files.contentsOfDirectory(at: folder, includingPropertiesForKeys: nil).filter(isFolder)
    for root in [folder] + inside where files.fileExists(atPath: root.appending(path: manifestName).path) {
      return root
    }
    let name = self.folder.lastPathComponent
    throw refused("\(name) contains no bundle: \(manifestName) is missing; choose what `streamfuse export` wrote")
  }

  /// Paths and sizes of all files in a folder. Links are refused: they may lead anywhere.
  private func entries(of root: URL, _ limits: BundleLimits) throws -> [(path: String, bytes: Int64)] {
    var found: [(path: String, bytes: Int64)] = []
    var folders = [""]
    while let folder = folders.popLast() {
      for name in try FileManager.default.contentsOfDirectory(atPath: root.appending(path: folder).path)
      where !name.hasPrefix(".") {
        let path = folder + name, place = root.appending(path: folder + name)
        if let bytes = fileSize(place), isPlainPath(path, depth: limits.depth) {
          found.append((path, bytes))
        } else if isFolder(place), isPlainPath(path + "/file", depth: limits.depth) {
          folders.append(path + "/")
        } else {
          throw refused("the name \"\(path.prefix(100))\" is not allowed in a bundle")
        }
        if found.count + folders.count > limits.files { throw refused("more than \(limits.files) files are no bundle") }
      }
    }
    return found
  }

  private func tooLarge(_ limits: BundleLimits) -> StreamFuseError {
    refused("the bundle exceeds the limit of \(limits.bytes >> 20) MiB")
  }

  private func refused(_ sentence: String) -> StreamFuseError { StreamFuseError(.badFile, sentence) }
}
