import CStreamFuse
import CStreamFuseEngine
import Foundation
import StreamFuseCore

/// The native engine: a loaded `.pte`, on the CPU. All its sessions share the weights.
public final class NativeEngine: Engine, @unchecked Sendable {  // sf_program may be used by any threads
  /// The library's handle.
  private let program: OpaquePointer
  /// What makes a pass cost differently.
  public let device: String
  /// Threads that the passes run on.
  public let threads: Int
  /// Bytes of memory that the cache of one sequence takes.
  public let cacheBytes: Int

  /// Loads a program.
  ///
  /// - Parameters:
  ///   - graph: `model.pte` of a bundle.
  ///   - spec: the bundle's facts, which must be the program's.
  ///   - threads: 0 chooses for this machine.
  public init(graph: URL, spec: ModelSpec, threads: Int = 0) throws {
    guard let wanted = Int32(exactly: threads) else {
      throw StreamFuseError(.badArgument, "threads must be 0 (chosen here) or a small number, not \(threads)")
    }
    var made: OpaquePointer?
    do {
      try check(
        graph.withUnsafeFileSystemRepresentation { sf_program_open($0, wanted, &made) }, sf_program_error(made))
      try check(spec.withCSpec { sf_program_check(made, $0) }, sf_program_error(made))
      var json: UnsafePointer<CChar>?
      try check(sf_program_describe(made, &json), sf_program_error(made))
      let facts = try JSONDecoder().decode(Facts.self, from: Data(String(cString: json!).utf8))
      self.threads = facts.threads
      self.cacheBytes = facts.cache_bytes
      self.device = "\(Self.machine), threads \(facts.threads), \(facts.instruction_set)"
    } catch {
      sf_program_close(made)
      throw error
    }
    self.program = made!
  }

  deinit { sf_program_close(program) }

  /// ExecuTorch's backends that the library has, each with the sentence that says why it cannot run here; nil: it can.
  public static var backends: [String: String?] {
    let json = Data(String(cString: sf_engine_backends()).utf8)
    return (try? JSONDecoder().decode([String: String?].self, from: json)) ?? [:]
  }

  /// An engine with an empty cache.
  public func makeTable() throws -> EngineTable {
    var engine: OpaquePointer?
    try check(sf_engine_new(program, &engine), sf_program_error(program))
    var table = sf_backend()
    let code = sf_engine_backend(engine, &table)
    if code != Int32(SF_OK) {
      defer { sf_engine_free(engine) }
      try check(code, sf_engine_error(engine))
    }
    return EngineTable(table)
  }

  /// What the program says of itself.
  private struct Facts: Decodable {
    /// Threads that the passes run on.
    let threads: Int
    /// Of a whole context.
    let cache_bytes: Int
    /// For example `neon_dot`.
    let instruction_set: String
  }
}
