import CStreamFuse
import Foundation

/// The core's session: one sequence of tokens on one engine. Used by one thread at a time, but for `stop`.
final class CoreSession: @unchecked Sendable {  // a Session sees to "one at a time"; sf_sequence_stop may come from any thread
  /// The core's handle.
  let handle: OpaquePointer
  /// Its tables must outlive the handle.
  private let model: CoreModel

  /// Takes the engine. `costFile` is where measured costs of passes are kept for `device`.
  init(_ model: CoreModel, _ engine: EngineTable, costFile: URL?, device: String, loadMs: Double) throws {
    var table = engine.table
    var made: OpaquePointer?
    var options = sf_sequence_options()
    options.size = MemoryLayout<sf_sequence_options>.size
    options.model_load_ms = loadMs
    let code = device.withCString { device in
      options.device = device
      guard let costFile else { return sf_sequence_new(model.handle, &table, &options, &made) }
      return costFile.withUnsafeFileSystemRepresentation { path in
        options.cost_file = path
        return sf_sequence_new(model.handle, &table, &options, &made)
      }
    }
    do {
      try check(code, sf_sequence_error(made))
    } catch {
      sf_sequence_free(made)
      throw error
    }
    self.handle = made!
    self.model = model
  }

  deinit { sf_sequence_free(handle) }

  /// Starts a text after the whole context `ids`.
  func start(_ ids: [Int64], _ config: GenerationConfig) throws {
    try config.withCOptions { options in
      try check(sf_sequence_start(handle, ids, Int64(ids.count), options), sf_sequence_error(handle))
    }
  }

  /// The next token; nil where the text has ended.
  func next() throws -> sf_token? {
    var token = sf_token()
    let code = sf_sequence_next(handle, &token)
    if code == Int32(SF_END) { return nil }
    try check(code, sf_sequence_error(handle))
    return token
  }

  /// Ends the text after what was delivered.
  func finish(_ reason: String? = nil) throws {
    try check(sf_sequence_finish(handle, reason), sf_sequence_error(handle))
  }

  /// Ends the text at its next token. Any thread may call it.
  func stop() { sf_sequence_stop(handle) }

  /// Forgets all tokens.
  func reset() throws { try check(sf_sequence_reset(handle), sf_sequence_error(handle)) }

  /// Measures what passes cost, unless that is known.
  func prepare() throws { try check(sf_sequence_prepare(handle), sf_sequence_error(handle)) }

  /// The context and all tokens delivered after it.
  func tokens() throws -> [Int] {
    var ids: UnsafePointer<Int64>?
    var count: Int64 = 0, cached: Int64 = 0
    try check(sf_sequence_tokens(handle, &ids, &count, &cached), sf_sequence_error(handle))
    return UnsafeBufferPointer(start: ids, count: Int(count)).map(Int.init)
  }

  /// What the last text took.
  func statistics() throws -> Statistics {
    guard let json = sf_sequence_statistics(handle) else { throw StreamFuseError(.outOfMemory, "no memory for the statistics") }
    return try Statistics(json: Data(bytes: json, count: strlen(json)))
  }

  /// Writes tokens, cache and `note` to a file.
  func save(to file: URL, note: Data) throws {
    let code = file.withUnsafeFileSystemRepresentation { path in
      note.withUnsafeBytes { sf_sequence_save(handle, path, $0.baseAddress, $0.count) }
    }
    try check(code, sf_sequence_error(handle))
  }

  /// Reads back what `save` wrote. `take` gets the note before anything changes; what it throws refuses the file.
  func restore(from file: URL, take: (Data) throws -> Void) throws {
    try withoutActuallyEscaping(take) { take in
      let reader = NoteReader(take)
      let context = Unmanaged.passUnretained(reader).toOpaque()
      let code = file.withUnsafeFileSystemRepresentation { path in
        sf_sequence_restore(handle, path, { NoteReader.of($0).read($1, $2) }, context)
      }
      if let refusal = reader.refusal { throw refusal }
      try check(code, sf_sequence_error(handle))
    }
  }
}

/// What `sf_sequence_restore` calls with the note.
private final class NoteReader {
  /// Who takes it.
  private let take: (Data) throws -> Void
  /// Why it was refused.
  private(set) var refusal: (any Error)?

  /// Hands the note to `take`.
  init(_ take: @escaping (Data) throws -> Void) { self.take = take }

  /// The reader behind the core's pointer.
  static func of(_ context: UnsafeMutableRawPointer?) -> NoteReader {
    Unmanaged<NoteReader>.fromOpaque(context!).takeUnretainedValue()
  }

  /// Whether the note is taken, as a code.
  func read(_ note: UnsafeRawPointer?, _ bytes: Int) -> Int32 {
    do {
      try take(note.map { Data(bytes: $0, count: bytes) } ?? Data())
      return Int32(SF_OK)
    } catch {
      refusal = error
      return Int32(SF_BAD_FILE)
    }
  }
}
