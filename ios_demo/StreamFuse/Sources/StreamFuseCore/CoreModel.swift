import CStreamFuse
import Foundation

/// A verify method of a bundle.
public struct VerifyMethod: Sendable, Equatable {
  /// For example `verify_8`.
  public let name: String
  /// Number of nodes.
  public let rows: Int
  /// Number of nodes that its pruner keeps.
  public let keep: Int
  /// Number of survivors that compute streams.
  public let carrying: Int

  /// A verify method; 1 <= keep <= rows, 0 <= carrying <= keep.
  public init(name: String, rows: Int, keep: Int, carrying: Int) {
    self.name = name
    self.rows = rows
    self.keep = keep
    self.carrying = carrying
  }
}

/// The facts of a bundle that the loop needs, for your own engine. For bundles they come from the manifest.
public struct ModelSpec: Sendable, Equatable {
  /// Capacity of the cache in tokens.
  public var capacity: Int
  /// Size of the vocabulary.
  public var vocabSize: Int
  /// Number of streams; 0 if there are none.
  public var numStreams: Int
  /// Candidates per stream.
  public var topK: Int
  /// Number of tokens that streams may propose; 0 if unknown.
  public var streamVocabSize: Int
  /// Prompt tokens per prefill pass.
  public var prefillRows: Int
  /// In any order.
  public var verify: [VerifyMethod]
  /// Whether the engine computes streams in a pass of their own.
  public var deferred: Bool
  /// The model's end-of-sequence tokens.
  public var stopTokenIDs: [Int]
  /// The identity of the bundle.
  public var identity: String

  /// The facts of a bundle.
  public init(
    capacity: Int, vocabSize: Int, numStreams: Int = 0, topK: Int = 0, streamVocabSize: Int = 0, prefillRows: Int,
    verify: [VerifyMethod] = [], deferred: Bool = false, stopTokenIDs: [Int] = [], identity: String
  ) {
    self.capacity = capacity
    self.vocabSize = vocabSize
    self.numStreams = numStreams
    self.topK = topK
    self.streamVocabSize = streamVocabSize
    self.prefillRows = prefillRows
    self.verify = verify
    self.deferred = deferred
    self.stopTokenIDs = stopTokenIDs
    self.identity = identity
  }

  /// A copy of the core's structure.
  package init(_ spec: sf_spec) {
    self.init(
      capacity: Int(spec.capacity), vocabSize: Int(spec.vocab_size), numStreams: Int(spec.num_streams),
      topK: Int(spec.top_k), streamVocabSize: Int(spec.stream_vocab_size), prefillRows: Int(spec.prefill_rows),
      verify: UnsafeBufferPointer(start: spec.verify, count: Int(spec.verify_count)).map {
        VerifyMethod(
          name: String(cString: $0.name), rows: Int($0.rows), keep: Int($0.keep), carrying: Int($0.carrying))
      },
      deferred: spec.deferred != 0,
      stopTokenIDs: UnsafeBufferPointer(start: spec.stop_ids, count: Int(spec.stop_count)).map(Int.init),
      identity: spec.identity.map { String(cString: $0) } ?? "")
  }

  /// Calls `body` with the core's structure, whose pointers are valid during the call.
  package func withCSpec<Result>(_ body: (UnsafePointer<sf_spec>) throws -> Result) rethrows -> Result {
    let names = verify.map { strdup($0.name)! }
    defer { names.forEach { free($0) } }
    let methods = zip(names, verify).map {
      sf_method(name: $0, rows: Int32($1.rows), keep: Int32($1.keep), carrying: Int32($1.carrying))
    }
    return try methods.withUnsafeBufferPointer { methods in
      try stopTokenIDs.map(Int64.init).withUnsafeBufferPointer { stops in
        try identity.withCString { identity in
          var spec = sf_spec()
          spec.size = MemoryLayout<sf_spec>.size
          spec.capacity = Int64(capacity)
          spec.vocab_size = Int64(vocabSize)
          spec.num_streams = Int64(numStreams)
          spec.top_k = Int64(topK)
          spec.prefill_rows = Int64(prefillRows)
          spec.verify = methods.baseAddress
          spec.verify_count = Int32(methods.count)
          spec.deferred = deferred ? 1 : 0
          spec.stop_ids = stops.baseAddress
          spec.stop_count = Int32(stops.count)
          spec.stream_vocab_size = Int32(streamVocabSize)
          spec.identity = identity
          return try body(&spec)
        }
      }
    }
  }
}

/// Drafting tables in the core's form, and the owner of their memory.
public struct DraftTables: @unchecked Sendable {  // the memory never changes
  /// One structure per table.
  let tensors: UnsafeBufferPointer<sf_tensor>
  /// Keeps the tables' memory.
  let owner: AnyObject?

  /// No tables.
  public static let none = DraftTables(tensors: .init(start: nil, count: 0), owner: nil)

  /// Tables that live as long as `owner` and never change.
  public init(tensors: UnsafeBufferPointer<sf_tensor>, owner: AnyObject?) {
    self.tensors = tensors
    self.owner = owner
  }
}

/// The core's model: facts and drafting tables of one bundle, for any number of sessions in any threads.
final class CoreModel: @unchecked Sendable {  // sf_core_model may be used by any threads
  /// The core's handle.
  let handle: OpaquePointer
  /// Keeps the tables' memory, which must outlive the sessions.
  private let tables: DraftTables

  /// Throws the core's error message if facts and tables do not match.
  init(_ spec: ModelSpec, _ tables: DraftTables) throws {
    var made: OpaquePointer?
    let code = spec.withCSpec { sf_core_model_open($0, tables.tensors.baseAddress, Int32(tables.tensors.count), &made) }
    do {
      try check(code, sf_core_model_error(made))
    } catch {
      sf_core_model_close(made)
      throw error
    }
    self.handle = made!
    self.tables = tables
  }

  deinit { sf_core_model_close(handle) }
}
