import Foundation

/// Requests that are tried again.
struct Downloader: Sendable {
  /// What makes the requests.
  let transport: any BundleTransport
  /// Waits before the further attempts of a download that receives nothing.
  var retries: [Duration] = [.seconds(1), .seconds(2), .seconds(4)]

  /// A server's refusal.
  private struct Status: Error {
    let code: Int
    /// It may answer otherwise a moment later.
    var isTemporary: Bool { code >= 500 || code == 408 || code == 429 }
  }

  /// An answer that makes no sense, or ends early.
  private struct Broken: Error { let reason: String }

  /// Reads a whole file of at most `most` bytes.
  ///
  /// Throws `StreamFuseError`: `network`, or `badFile` for a larger one.
  func get(_ url: URL, most: Int) async throws -> Data {
    let bytes = Locked(Data())
    do {
      try await transport.get(url, from: 0) { arrived in
        if arrived > most { throw tooLarge(url, most) }
      } head: { head in
        if head.status != 200 { throw Status(code: head.status) }
      } body: { block in
        try bytes.withLock {
          $0 += block
          if $0.count > most { throw tooLarge(url, most) }
        }
      }
    } catch {
      try Task.checkCancellation()
      throw error is StreamFuseError ? error : unreachable(url, error)
    }
    return bytes.withLock { $0 }
  }

  /// Completes `part`, whose first bytes may be there from an earlier attempt, and compares its hash, which is computed
  /// while bytes arrive. If it is another one, the part is deleted.
  func complete(
    _ url: URL, part file: URL, expected: CatalogFile, report: @escaping @Sendable (Int64) -> Void
  ) async throws {
    let worker = FileWorker()
    let part = try await worker.run { try Part(file, url: url, expected: expected, report: report) }
    do {
      var isResumed = part.done > 0
      while true {
        try await fill(part, url, expected)
        if try await worker.run({ try part.finish() }) { return }
        if !isResumed { break }
        isResumed = false  // what an earlier attempt left may have been damaged by a power failure
      }
      throw StreamFuseError(
        .badFile, "\(url.path) is not the file of the catalogue (SHA-256); the publisher must upload it again")
    } catch let error as StreamFuseError where error.code == .badFile {
      part.delete()
      throw error
    }
  }

  /// Requests what is missing until it is there.
  private func fill(_ part: Part, _ url: URL, _ expected: CatalogFile) async throws {
    var attempt = 0
    var most = part.done  // a file that is started again and again makes no progress
    while part.done < expected.bytes {
      let before = part.done
      do {
        try await transport.get(url, from: before) {
          try part.arriving($0)
        } head: { head in
          switch head.status {
          case 206: try needRange(head, from: before, url, expected)
          case 416 where before > 0:
            try disk { try part.restart() }  // the file was another one before, or is incomplete on the server
            throw Broken(reason: "the server has no byte \(before)")
          case 200:
            if before > 0 { try disk { try part.restart() } }  // a server without ranges
            if let there = head.contentLength, there != expected.bytes { throw otherSize(url, "\(there)", expected) }
          default: throw Status(code: head.status)
          }
        } body: { block in try disk { try part.append(block) } }
        if part.done < expected.bytes { throw Broken(reason: "the connection ended early") }
      } catch {
        try Task.checkCancellation()
        if isFull(error as NSError) || cannotWrite(error) { throw noSpace() }  // the transport may store the response
        switch error {
        case is StreamFuseError, is CocoaError: throw error
        case let error as DiskError: throw error.cause  // a connection too may fail with a POSIXError
        case let error as Status where !error.isTemporary: throw unreachable(url, error)
        default: break
        }
        if part.done > most { attempt = 0 }
        most = max(most, part.done)
        if attempt == retries.count { throw unreachable(url, error) }
        try await Task.sleep(for: retries[attempt])
        attempt += 1
      }
    }
  }

  /// Whether the transport could not store a response: the URL system's errors do not say that the disk is full.
  private func cannotWrite(_ error: any Error) -> Bool {
    guard let code = (error as? URLError)?.code else { return false }
    return code == .cannotWriteToFile || code == .cannotCreateFile
  }

  /// Marks what the disk refuses.
  private func disk(_ work: () throws -> Void) throws {
    do {
      try work()
    } catch let error as POSIXError {
      throw DiskError(cause: error)
    }
  }

  private func needRange(_ head: TransportHead, from offset: Int64, _ url: URL, _ expected: CatalogFile) throws {
    let range = head.contentRange ?? ""
    guard let found = range.wholeMatch(of: /bytes (\d+)-\d+\/(\d+|\*)/), Int64(found.1) == offset else {
      throw Broken(reason: "the server sends the range \"\(range.prefix(100))\"")
    }
    if found.2 != "*" && Int64(found.2) != expected.bytes { throw otherSize(url, String(found.2), expected) }
  }

  private func tooLarge(_ url: URL, _ most: Int) -> StreamFuseError {
    StreamFuseError(.badFile, "\(url) is larger than \(most >> 20) MiB")
  }

  private func otherSize(_ url: URL, _ there: String, _ expected: CatalogFile) -> StreamFuseError {
    StreamFuseError(.badFile, "\(url.path) has \(there) bytes on the server, but \(expected.bytes) in the catalogue")
  }

  private func unreachable(_ url: URL, _ error: any Error) -> StreamFuseError {
    let reason =
      switch error {
      case let error as Status: "the server answers with status \(error.code)"
      case let error as Broken: error.reason
      default: error.localizedDescription.split(separator: "\n").joined(separator: " ")
      }
    return StreamFuseError(
      .network, "\(url) cannot be downloaded (\(reason)); what has arrived is kept",
      isTemporary: (error as? Status)?.isTemporary ?? true)
  }
}

/// What the disk refused.
private struct DiskError: Error { let cause: any Error }

/// A file that is not whole yet, and the hash of what is there. Used by one call after another.
private final class Part: @unchecked Sendable {
  private let file: URL
  private let url: URL
  private let expected: CatalogFile
  private let report: @Sendable (Int64) -> Void
  private let handle: FileHandle
  private var hash = FileHash()
  /// How many bytes are there.
  private(set) var done: Int64 = 0
  /// The number of bytes reported as progress, at least `done`.
  private var shown: Int64 = 0

  init(_ file: URL, url: URL, expected: CatalogFile, report: @escaping @Sendable (Int64) -> Void) throws {
    (self.file, self.url, self.expected, self.report) = (file, url, expected, report)
    let number = open(file.path, O_RDWR | O_CREAT | O_CLOEXEC, 0o600)
    if number < 0 { throw POSIXError(POSIXErrorCode(rawValue: errno) ?? .EIO) }
    handle = FileHandle(fileDescriptor: number, closeOnDealloc: true)
    let there = fileSize(file) ?? 0
    if there > expected.bytes {
      try restart()
    } else {
      while done < there, let block = try handle.read(upToCount: 4 << 20), !block.isEmpty {
        hash.update(block)
        done += Int64(block.count)
        try Task.checkCancellation()
      }
    }
    report(done)
  }

  /// Forgets what is there.
  func restart() throws {
    try onDisk {
      try handle.truncate(atOffset: 0)
      try handle.seek(toOffset: 0)
    }
    hash = FileHash()
    (done, shown) = (0, 0)
  }

  /// Reports bytes that the transport has received and `append` gets later. Throws if they are more than the file has;
  /// a response that restarts at byte 0 may be as long as the file.
  func arriving(_ bytes: Int64) throws {
    try needRoom(bytes > expected.bytes)
    shown = max(shown, min(done + bytes, expected.bytes))
    report(shown)
  }

  private func needRoom(_ isLarger: Bool) throws {
    if isLarger { throw StreamFuseError(.badFile, "\(url.path) is larger on the server than in the catalogue") }
  }

  func append(_ block: Data) throws {
    try needRoom(done + Int64(block.count) > expected.bytes)
    try onDisk { try handle.write(contentsOf: block) }
    hash.update(block)
    done += Int64(block.count)
    shown = max(shown, done)
    report(shown)
  }

  /// Waits until all is on the disk. False, and nothing is there any more, if it is another file.
  func finish() throws -> Bool {
    try onDisk { try handle.synchronize() }
    if hash.digits() == expected.sha256 { return true }
    try restart()
    return false
  }

  func delete() { try? FileManager.default.removeItem(at: file) }
}
