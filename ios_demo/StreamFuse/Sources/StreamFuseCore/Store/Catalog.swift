import Foundation

/// A file of a published bundle.
public struct CatalogFile: Sendable, Equatable, Decodable {
  /// 64 hexadecimal digits.
  public let sha256: String
  /// Size in bytes.
  public let bytes: Int64
}

/// A published bundle.
public struct CatalogEntry: Sendable, Equatable, Identifiable {
  /// The name that it gets in a store, unique in its catalogue.
  public let name: String
  /// The name to show, one line.
  public let title: String
  /// The licence of the model; nil if it is not stated.
  public let license: String?
  /// Maximum number of tokens of prompt and answer together.
  public let contextLength: Int
  /// Total size of its files in bytes.
  public let bytes: Int64
  /// The export target, for example `executorch` or `coreml`.
  public let target: String
  /// The backend that runs it, a key of `StreamFuse.backends`, for example `kernels` or `mlprogram`.
  public let backend: String
  /// The address of the folder that contains the files, ends in `/`.
  public let url: URL
  /// The files by path, with `/` between folders.
  public let files: [String: CatalogFile]

  /// Identifies the contents: the SHA-256 of the manifest, which contains those of all other files.
  public var id: String { files[manifestName]?.sha256 ?? "" }

  /// The address of a file.
  func address(of path: String) throws -> URL {
    let plain = CharacterSet(charactersIn: "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._~/")
    guard let escaped = path.addingPercentEncoding(withAllowedCharacters: plain),
      let url = URL(string: url.absoluteString + escaped, encodingInvalidCharacters: false)
    else { throw StreamFuseError(.badFile, "the file \(path) has no address") }
    return url
  }

  /// Throws `.badFile` if the manifest or its signature is larger than 16 MiB; they are downloaded before any check.
  func needSmallManifest() throws {
    for (path, file) in files where describingNames.contains(path) && file.bytes > Self.mostManifestBytes {
      throw StreamFuseError(
        .badFile,
        "\(path) of \(name) has \(file.bytes) bytes in the catalogue; at most \(Self.mostManifestBytes >> 20) MiB are "
          + "accepted")
    }
  }

  private static let mostManifestBytes: Int64 = 16 << 20

  /// Throws `.badFile` unless `manifest` lists the same files as the catalogue, which is not signed.
  func needListed(_ manifest: Data) throws {
    func refused(_ reason: String) -> StreamFuseError {
      StreamFuseError(.badFile, "\(manifestName) of \(name) \(reason); the publisher must write the catalogue again")
    }
    struct Listed: Decodable { let files: [String: CatalogFile] }
    guard let listed = try? JSONDecoder().decode(Listed.self, from: manifest).files else {
      throw refused("has no list of files")
    }
    let others = files.filter { !describingNames.contains($0.key) }
    if let path = others.keys.filter({ listed[$0] == nil }).min() {
      throw refused("does not list \(path), which is in the catalogue")
    }
    if let path = listed.keys.filter({ others[$0] == nil }).min() {
      throw refused("lists \(path), which is not in the catalogue")
    }
    if let path = listed.keys.filter({ listed[$0] != others[$0] }).min() {
      throw refused("has another size or SHA-256 of \(path) than the catalogue")
    }
  }

  /// Why a device with these backends (`StreamFuse.backends`) cannot run the bundle; nil if it can.
  public func unsupportedReason(backends: [String: String?]) -> String? {
    guard ["executorch", "coreml"].contains(target) else {
      return "it is for \(target), and this library runs bundles for executorch and coreml"
    }
    guard let reason = backends[backend] else { return "this library has no backend \(backend)" }
    return reason
  }
}

/// The bundles that somebody publishes: the file that `streamfuse bundle catalog` writes. See `BundleStore.catalog`.
public struct Catalog: Sendable {
  /// The published bundles, in the order of the file.
  public let entries: [CatalogEntry]

  static let mostBytes = 4 << 20
  private static let version = 1

  /// Reads a catalogue that the app has. `address` is where it was published, or any HTTPS address in the folder that
  /// contains the bundles: addresses in it are relative to it.
  ///
  /// Throws `StreamFuseError`: `badFile` with a message that names entry and field, `badArgument` for the address.
  public static func parse(_ json: Data, address: String, limits: BundleLimits = BundleLimits()) throws -> Catalog {
    let base = try allowedAddress(address)
    let raw: Raw
    do {
      let found = try JSONDecoder().decode(Version.self, from: json).catalog_version
      try need(found == version, "catalog_version is \(found), but this library reads \(version)")
      raw = try JSONDecoder().decode(Raw.self, from: json)
    } catch let error as DecodingError {
      throw StreamFuseError(.badFile, "the catalogue is damaged: \(sentence(error))")
    }
    let entries = try raw.bundles.enumerated().map { try checked($1, "bundles[\($0)]", base, limits) }
    var names: Set<String> = []
    for entry in entries { try need(names.insert(entry.name).inserted, "\(entry.name) is in it twice") }
    return Catalog(entries: entries)
  }

  private static func checked(
    _ raw: RawEntry, _ place: String, _ base: URL, _ limits: BundleLimits
  ) throws -> CatalogEntry {
    func need(_ isValid: Bool, _ problem: @autoclosure () -> String) throws {
      try Catalog.need(isValid, "\(place).\(problem())")
    }
    try need(raw.name.wholeMatch(of: /[A-Za-z0-9][A-Za-z0-9._-]{0,59}/) != nil, "name is not a plain name")
    for (field, text) in [("title", raw.title), ("backend", raw.backend), ("target", raw.target)] {
      try need(
        isLine(text) && !text.allSatisfy(\.isWhitespace), "\(field) is empty, too long or not one line")
    }
    try need(raw.license.map(isLine) ?? true, "license is too long or not one line")
    try need(raw.context_length > 0, "context_length is \(raw.context_length)")
    let count = raw.files.count
    try need((1...limits.files).contains(count), "files has \(count) files; at most \(limits.files) are accepted")
    try need(raw.files[manifestName] != nil, "files has no \(manifestName)")
    var sum: Int64 = 0
    for (path, file) in raw.files.sorted(by: { $0.key < $1.key }) {
      try need(isPlainPath(path, depth: limits.depth), "files has the path \(shown(path)), which is not allowed")
      try need(file.sha256.wholeMatch(of: /[0-9a-f]{64}/) != nil, "files.\(shown(path)).sha256 is not a SHA-256")
      try need((0...limits.bytes).contains(file.bytes), "files.\(shown(path)).bytes is \(file.bytes)")
      sum += file.bytes
      try need(sum <= limits.bytes, "files is larger than the limit of \(limits.bytes >> 20) MiB")
      var folder = path[...]
      while let slash = folder.lastIndex(of: "/") {
        folder = folder[..<slash]
        try need(raw.files[String(folder)] == nil, "files has \(shown(path)) below a file")
      }
    }
    try need(sum == raw.bytes, "bytes is \(raw.bytes), but its files have \(sum)")
    let relative = URL(string: raw.url, encodingInvalidCharacters: false)
    let url = relative.flatMap { URL(string: $0.relativeString, relativeTo: base)?.absoluteURL }
    guard let url, isAllowed(url), url.absoluteString.hasSuffix("/"), url.query == nil, url.fragment == nil else {
      throw StreamFuseError(
        .badFile,
        "the catalogue is not valid: \(place).url is \(shown(raw.url)); "
          + "it must be the HTTPS address of a folder, and end in /")
    }
    return CatalogEntry(
      name: raw.name, title: raw.title, license: raw.license, contextLength: raw.context_length, bytes: raw.bytes,
      target: raw.target, backend: raw.backend, url: url, files: raw.files)
  }

  private static func need(_ isValid: Bool, _ problem: @autoclosure () -> String) throws {
    if !isValid { throw StreamFuseError(.badFile, "the catalogue is not valid: \(problem())") }
  }

  private static func sentence(_ error: DecodingError) -> String {
    func named(_ context: DecodingError.Context, _ key: (any CodingKey)? = nil) -> String {
      let path = (context.codingPath + (key.map { [$0] } ?? [])).map { $0.intValue.map { "[\($0)]" } ?? $0.stringValue }
      let name = path.joined(separator: ".")
      return path.isEmpty ? "it is not JSON of a catalogue" : "\(name) is missing or of another kind"
    }
    switch error {
    case .keyNotFound(let key, let context): return named(context, key)
    case .typeMismatch(_, let context), .valueNotFound(_, let context), .dataCorrupted(let context):
      return named(context)
    @unknown default: return "it cannot be read"
    }
  }

  private static func isControl(_ scalar: Unicode.Scalar) -> Bool {
    switch scalar.value {
    case 0...0x1f, 0x7f...0x9f, 0x2028...0x202e, 0x2066...0x2069: true
    default: false
    }
  }

  private static func isLine(_ text: String) -> Bool {
    text.utf16.count <= 200 && !text.unicodeScalars.contains(where: isControl)
  }

  private static func shown(_ text: String) -> String {
    "\"\(String(String.UnicodeScalarView(text.unicodeScalars.prefix(100).map { isControl($0) ? "?" : $0 })))\""
  }

  private struct Version: Decodable { let catalog_version: Int }

  private struct Raw: Decodable { let bundles: [RawEntry] }

  private struct RawEntry: Decodable {
    let name, title: String
    let license: String?
    let context_length: Int
    let bytes: Int64
    let target, backend, url: String
    let files: [String: CatalogFile]
  }
}

/// Parses an address that `isAllowed`. Throws `StreamFuseError` (`.badArgument`) for any other.
func allowedAddress(_ address: String) throws -> URL {
  let words = address.trimmingCharacters(in: .whitespacesAndNewlines)
  guard let url = URL(string: words, encodingInvalidCharacters: false), isAllowed(url) else {
    throw StreamFuseError(.badArgument, "\"\(address.prefix(200))\" is not an address that begins with https://")
  }
  return url
}

/// HTTPS, or HTTP from this device itself.
func isAllowed(_ url: URL) -> Bool {
  guard let host = url.host(), !host.isEmpty, url.user() == nil, url.password() == nil else { return false }
  switch url.scheme?.lowercased() {
  case "https": return true
  case "http": return ["localhost", "127.0.0.1", "::1", "[::1]"].contains(host)
  default: return false
  }
}
