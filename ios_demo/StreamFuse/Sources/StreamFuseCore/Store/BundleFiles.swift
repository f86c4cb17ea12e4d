import CryptoKit
import Foundation

/// The file that describes all others of a bundle.
let manifestName = "manifest.json"

/// The files that the manifest does not list: itself and its signature.
let describingNames: Set<String> = [manifestName, "manifest.sig"]

/// Whether a path of untrusted origin leads to a file below its folder, on every file system.
func isPlainPath(_ path: String, depth: Int) -> Bool {
  let parts = path.split(separator: "/", omittingEmptySubsequences: false)
  return parts.count <= depth
    && parts.allSatisfy { part in
      !part.isEmpty && part != "." && part != ".." && part.utf8.count <= 255
        && part.unicodeScalars.allSatisfy { $0 != "\\" && $0 != ":" && $0.properties.generalCategory != .control }
    }
}

/// The SHA-256 of bytes that come one block after another.
struct FileHash {
  private var state = SHA256()

  mutating func update(_ bytes: Data) { state.update(data: bytes) }

  /// 64 hexadecimal digits.
  func digits() -> String { state.finalize().map { String(format: "%02x", $0) }.joined() }
}

/// Runs work that blocks its thread, within the calling task, on a queue of its own.
actor FileWorker {
  private nonisolated let executor = SessionExecutor()
  nonisolated var unownedExecutor: UnownedSerialExecutor { executor.asUnownedSerialExecutor() }

  /// Runs `work` there.
  func run<Result: Sendable>(_ work: @Sendable () throws -> Result) rethrows -> Result { try work() }
}

/// A folder that one store works in, in this process and others; until the claim is gone.
final class Claim: Sendable {
  /// The folder.
  let folder: URL
  private let file: Int32

  /// Nil if it is claimed already. The folder is created if it is missing.
  init?(_ folder: URL) throws {
    self.folder = folder
    try FileManager.default.createDirectory(at: folder, withIntermediateDirectories: true)
    file = open(folder.appending(path: "lock").path, O_RDWR | O_CREAT | O_CLOEXEC, 0o600)
    if file < 0 { throw POSIXError(POSIXErrorCode(rawValue: errno) ?? .EIO) }
    // `deinit` closes the file, also of a claim that fails here.
    if flock(file, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK { return nil }
    futimens(file, nil)  // its time is that of the last claim
  }

  deinit { if file >= 0 { close(file) } }
}

/// Calls `fsync` on a folder, so that renames in it survive a power failure. Errors are ignored: not every file system
/// supports it.
func syncFolder(_ folder: URL) {
  let file = open(folder.path, O_RDONLY | O_CLOEXEC)
  guard file >= 0 else { return }
  fsync(file)
  close(file)
}

/// The size of a regular file in bytes; nil if there is none. Symbolic links are not followed.
func fileSize(_ url: URL) -> Int64? {
  guard let attributes = try? FileManager.default.attributesOfItem(atPath: url.path),
    attributes[.type] as? FileAttributeType == .typeRegular
  else { return nil }
  return (attributes[.size] as? NSNumber)?.int64Value
}

/// Whether there is a folder. Symbolic links are not followed.
func isFolder(_ url: URL) -> Bool {
  (try? FileManager.default.attributesOfItem(atPath: url.path))?[.type] as? FileAttributeType == .typeDirectory
}

/// The regular files below a folder, with their sizes. Symbolic links are left out.
func regularFiles(in folder: URL) -> [(path: String, bytes: Int64)] {
  let paths = (try? FileManager.default.subpathsOfDirectory(atPath: folder.path)) ?? []
  return paths.compactMap { path in fileSize(folder.appending(path: path)).map { (path, $0) } }
}

/// Runs `work`, which writes to the disk. Throws `StreamFuseError` (`.noSpace`) if the disk is full.
func onDisk<Result>(_ work: () throws -> Result) throws -> Result {
  do {
    return try work()
  } catch {
    if isFull(error as NSError) { throw noSpace() }
    throw error
  }
}

/// Whether the disk is full.
func isFull(_ error: NSError) -> Bool {
  if error.domain == NSPOSIXErrorDomain && error.code == Int(ENOSPC) { return true }
  if error.domain == NSCocoaErrorDomain && error.code == CocoaError.fileWriteOutOfSpace.rawValue { return true }
  return (error.userInfo[NSUnderlyingErrorKey] as? NSError).map(isFull) ?? false
}

/// The error for a full disk, with both numbers of bytes if they are known.
func noSpace(needed: Int64? = nil, free: Int64? = nil) -> StreamFuseError {
  var numbers = ""
  if let needed, let free {
    numbers = ": it needs \(needed / 1_000_000) MB, and \(max(0, free) / 1_000_000) MB are free"
  }
  return StreamFuseError(
    .noSpace, "this device has too little free space for the bundle\(numbers); make room and try again")
}
