import CStreamFuse
import Foundation

/// An engine written in Swift: it runs the methods of one bundle and owns the cache of one sequence. docs/core.md,
/// "Custom engines", specifies each function. A session owns it and calls it only from its own queue.
public protocol Backend: AnyObject {
  /// Runs one pass over `ids.count` real rows of a method, without changing the cache. `ancestors` is rows x rows,
  /// row-major. The memory of the results must stay valid until the next `run`.
  func run(
    _ method: String, ids: UnsafeBufferPointer<Int64>, positions: UnsafeBufferPointer<Int64>,
    ancestors: UnsafeBufferPointer<UInt8>, wantLogits: Bool
  ) throws -> sf_results
  /// Computes the streams of one survivor of the last run, given by its index among the survivors, after its rows were
  /// committed. `nextToken` is the token that the model chose after it, for streams that take it as input.
  func streams(survivor: Int, nextToken: Int64) throws -> sf_results
  /// Appends keys and values of these rows of the last run to the cache, in this order; all or none.
  func commit(rows: UnsafeBufferPointer<Int32>) throws
  /// Truncates the cache to `length` positions.
  func truncate(to length: Int) throws
  /// The greatest value up to `length` that `truncate` accepts, less than `length` if layers with a sliding window have
  /// overwritten positions that the next pass would need. 0 and the length before a commit of one row are always accepted.
  func truncatable(_ length: Int) throws -> Int
  /// Size in bytes of the first `length` positions in a saved session; nil if rows cannot be saved.
  func byteCount(length: Int) throws -> Int?
  /// Writes the first `length` positions, in parts of any size.
  func save(length: Int, write: (UnsafeRawBufferPointer) throws -> Void) throws
  /// Reads `length` positions into an empty cache, in parts of any size; `read` fills the buffer that it gets.
  func load(length: Int, read: (UnsafeMutableRawBufferPointer) throws -> Void) throws
  /// Frees the memory of the cache, which is empty, and of inputs and outputs; the next `run` or `load` allocates it again.
  func trim()
}

/// Default implementations of the optional functions.
extension Backend {
  /// Refuses: the schedule is not deferred.
  public func streams(survivor: Int, nextToken: Int64) throws -> sf_results {
    throw StreamFuseError(.execution, "this engine computes no streams by themselves")
  }
  /// `truncate` accepts every length.
  public func truncatable(_ length: Int) throws -> Int { length }
  /// Rows cannot be saved; a restored session prefills its tokens again.
  public func byteCount(length: Int) throws -> Int? { nil }
  /// Never called if `byteCount` is nil.
  public func save(length: Int, write: (UnsafeRawBufferPointer) throws -> Void) throws {}
  /// Never called if `byteCount` is nil.
  public func load(length: Int, read: (UnsafeMutableRawBufferPointer) throws -> Void) throws {}
  /// Frees nothing.
  public func trim() {}
}

/// Loaded graphs: makes an engine for each sequence. It may be used by any thread.
public protocol Engine: Sendable {
  /// Everything that changes the latency of a pass: processor, threads, build. Measured latencies are stored per device
  /// string.
  var device: String { get }
  /// Size in bytes of one sequence's cache when its context is full; 0 if unknown. A session is refused if the system
  /// does not let the app allocate that much.
  var cacheBytes: Int { get }
  /// An engine with an empty cache.
  func makeTable() throws -> EngineTable
}

extension Engine {
  /// Unknown.
  public var cacheBytes: Int { 0 }

  /// An engine with an empty cache, if enough memory is available. The system kills an app that exceeds its limit, so
  /// this is checked first.
  package func makeTable(within available: Int?) throws -> EngineTable {
    try needMemory(cacheBytes, available: available)
    return try makeTable()
  }
}

/// Throws if a cache needs more memory than the system lets the app allocate.
package func needMemory(_ cacheBytes: Int, available: Int? = availableMemory()) throws {
  if let available, cacheBytes > available {
    throw StreamFuseError(
      .outOfMemory,
      "a cache of this bundle takes \(cacheBytes >> 20) MB, and the system lets this app take \(available >> 20) MB "
        + "more: close other chats, or export the bundle with a shorter context (--max-context-len)")
  }
}

/// The core's function table of an engine. Pass it to the core, which releases it.
public struct EngineTable {
  /// The table itself.
  package let table: sf_backend

  /// The table of an engine that is not written in Swift.
  public init(_ table: sf_backend) { self.table = table }

  /// The table of an engine in Swift.
  public init(_ backend: some Backend) {
    let context = Unmanaged.passRetained(Callee(backend)).toOpaque()
    var table = sf_backend()
    table.size = MemoryLayout<sf_backend>.size
    table.context = context
    table.run = { context, method, n, ids, positions, ancestors, wantLogits, out in
      Callee.of(context).calls { backend in
        let rows = Int(n)
        out!.pointee = try backend.run(
          String(cString: method!), ids: .init(start: ids, count: rows), positions: .init(start: positions, count: rows),
          ancestors: .init(start: ancestors, count: rows * rows), wantLogits: wantLogits != 0)
      }
    }
    table.streams = { context, survivor, nextToken, out in
      Callee.of(context).calls { out!.pointee = try $0.streams(survivor: Int(survivor), nextToken: nextToken) }
    }
    table.commit = { context, rows, n in
      Callee.of(context).calls { try $0.commit(rows: .init(start: rows, count: Int(n))) }
    }
    table.truncate = { context, length in Callee.of(context).calls { try $0.truncate(to: Int(length)) } }
    table.truncatable = { context, length, longest in
      Callee.of(context).calls { longest!.pointee = Int64(try $0.truncatable(Int(length))) }
    }
    table.trim = { Callee.of($0).trim() }
    table.error = { Callee.of($0).sentence }
    table.release = { Unmanaged<Callee>.fromOpaque($0!).release() }
    if (try? backend.byteCount(length: 0)) != nil {
      table.bytes_of = { context, length, bytes in
        Callee.of(context).calls { bytes!.pointee = UInt64(try $0.byteCount(length: Int(length)) ?? 0) }
      }
      table.save = { context, length, put, to in
        Callee.of(context).calls {
          try $0.save(length: Int(length)) { try needOk(put!(to, $0.baseAddress, UInt64($0.count))) }
        }
      }
      table.load = { context, length, get, from in
        Callee.of(context).calls {
          try $0.load(length: Int(length)) { try needOk(get!(from, $0.baseAddress, UInt64($0.count))) }
        }
      }
    }
    self.table = table
  }
}

/// Throws unless a function of the core succeeded.
private func needOk(_ code: Int32) throws {
  if code != Int32(SF_OK) {
    throw StreamFuseError(.init(rawValue: code) ?? .broken, "the saved cache cannot be written or read")
  }
}

/// The callee of the core: the engine, and the message of its last failure as a C string.
private final class Callee {
  /// The engine.
  private let backend: any Backend
  /// The message, zero-terminated; replaced by the next failure.
  private(set) var sentence: UnsafePointer<CChar>?

  /// Keeps the engine for as long as the core has the table.
  init(_ backend: any Backend) { self.backend = backend }

  deinit { sentence?.deallocate() }

  /// The callee behind the core's pointer.
  static func of(_ context: UnsafeMutableRawPointer?) -> Callee {
    Unmanaged<Callee>.fromOpaque(context!).takeUnretainedValue()
  }

  /// Frees the engine's memory.
  func trim() { backend.trim() }

  /// Calls the engine and turns a thrown error into a code and a message.
  func calls(_ body: (any Backend) throws -> Void) -> Int32 {
    do {
      try body(backend)
      return Int32(SF_OK)
    } catch {
      let known = error as? StreamFuseError
      sentence?.deallocate()
      sentence = (known?.message ?? String(describing: error)).withCString { text in
        let copy = UnsafeMutablePointer<CChar>.allocate(capacity: strlen(text) + 1)
        copy.update(from: text, count: strlen(text) + 1)
        return UnsafePointer(copy)
      }
      return (known?.code ?? .execution).rawValue
    }
  }
}
