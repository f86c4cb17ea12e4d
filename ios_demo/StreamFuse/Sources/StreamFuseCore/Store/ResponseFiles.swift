import Foundation

/// Responses in a folder: for each request up to three files, the head and the body of its response, and the resume data
/// of a request that ended early.
struct ResponseFiles: Sendable {
  /// What is kept of a request that ended early.
  private struct Kept: Codable {
    let bytes: Int64
    let data: Data
  }

  private let folder: URL

  /// A folder, which is created if it is missing.
  init(_ folder: URL) {
    self.folder = folder
    try? FileManager.default.createDirectory(at: folder, withIntermediateDirectories: true)
  }

  /// The file name of the response to a request for a file from byte `offset` on: a hash of its URL, and the offset.
  static func name(_ url: URL, from offset: Int64) -> String { "\(stem(url))-\(offset)" }

  /// What all names of responses with bytes of a file begin with.
  static func stem(_ url: URL) -> String {
    var hash = FileHash()
    hash.update(Data(url.absoluteString.utf8))
    return hash.digits()
  }

  /// The first byte that was requested by the request of this name.
  static func offset(_ name: String) -> Int64 { name.split(separator: "-").last.flatMap { Int64($0) } ?? 0 }

  /// Deletes what nobody has requested again for a week.
  func sweep() {
    let oldest = Date(timeIntervalSinceNow: -7 * 86_400)
    for file in files() {
      let path = folder.appending(path: file).path
      let date = (try? FileManager.default.attributesOfItem(atPath: path))?[.modificationDate] as? Date
      // All files of a response, whose dates differ: without its body, its head would stand for a stored response.
      if let date, date < oldest { delete(String(file.prefix { $0 != "." })) }
    }
  }

  /// The name of the response with the bytes of a file from byte `offset` on. It is a stored one that begins earlier if
  /// a call that has read a part of it was cancelled, or its process has ended.
  func response(_ url: URL, from offset: Int64) -> String {
    let own = Self.name(url, from: offset)
    if isStored(own) { return own }
    let longer = names(url).first { name in
      guard Self.offset(name) < offset, let head = try? self.head(name) else { return false }
      return isPart(name, head) && Self.offset(name) + bodyBytes(name) > offset
    }
    return longer ?? own
  }

  /// The names of what is stored of a file.
  func names(_ url: URL) -> Set<String> {
    let stem = Self.stem(url)
    return Set(files().filter { $0.hasPrefix(stem) }.map { String($0.split(separator: ".")[0]) })
  }

  /// Whether a response is stored completely; its head is written last.
  func isStored(_ name: String) -> Bool { fileSize(place(name, "head")) != nil }

  /// The head of a stored response.
  func head(_ name: String) throws -> TransportHead {
    try JSONDecoder().decode(TransportHead.self, from: Data(contentsOf: place(name, "head")))
  }

  /// The number of bytes in the body of a response.
  func bodyBytes(_ name: String) -> Int64 { fileSize(place(name, "body")) ?? 0 }

  /// Stores a response, whose body is moved.
  func store(_ name: String, _ head: TransportHead, body: URL) throws {
    let encoded = try JSONEncoder().encode(head)
    remove(name, "body")
    try FileManager.default.moveItem(at: body, to: place(name, "body"))
    try encoded.write(to: place(name, "head"), options: .atomic)
  }

  /// Passes a stored response, from byte `offset` of the file on, to `head` and `body`.
  func read(
    _ name: String, from offset: Int64, head: @Sendable (TransportHead) throws -> Void,
    body: @Sendable (Data) throws -> Void
  ) throws {
    let stored = try self.head(name), before = offset - Self.offset(name)
    let isRest = before > 0 && isPart(name, stored)
    try head(isRest ? stored.rest(from: offset, bytes: bodyBytes(name) - before) : stored)
    let file = try FileHandle(forReadingFrom: place(name, "body"))
    defer { try? file.close() }
    if isRest { try file.seek(toOffset: UInt64(before)) }
    while let block = try file.read(upToCount: 1 << 20), !block.isEmpty {
      try Task.checkCancellation()
      try body(block)
    }
  }

  /// Deletes all that is stored of a response.
  func delete(_ name: String) { for kind in ["head", "body", "resume"] { remove(name, kind) } }

  /// Keeps the resume data of a request for which so many bytes had arrived.
  func keep(_ data: Data, bytes: Int64, for name: String) {
    try? JSONEncoder().encode(Kept(bytes: bytes, data: data)).write(to: place(name, "resume"))
  }

  /// How many bytes had arrived for a request that can be resumed.
  func resumedBytes(_ name: String) -> Int64 { kept(name)?.bytes ?? 0 }

  /// Resume data of a request that ended early; deleted, because it is valid for one attempt.
  func resumeData(_ name: String) -> Data? {
    defer { remove(name, "resume") }
    return kept(name)?.data
  }

  private func kept(_ name: String) -> Kept? {
    (try? Data(contentsOf: place(name, "resume"))).flatMap { try? JSONDecoder().decode(Kept.self, from: $0) }
  }

  /// Whether a response with this head begins with the byte that was requested. Else it is a refusal, or a whole file of
  /// a server without ranges.
  private func isPart(_ name: String, _ head: TransportHead) -> Bool {
    head.status == (Self.offset(name) == 0 ? 200 : 206)
  }

  private func files() -> [String] { (try? FileManager.default.contentsOfDirectory(atPath: folder.path)) ?? [] }
  private func place(_ name: String, _ kind: String) -> URL { folder.appending(path: "\(name).\(kind)") }
  private func remove(_ name: String, _ kind: String) { try? FileManager.default.removeItem(at: place(name, kind)) }
}

extension TransportHead {
  /// Whether the server sends no bytes of the file.
  var isRefusal: Bool { ![200, 206].contains(status) }
}
