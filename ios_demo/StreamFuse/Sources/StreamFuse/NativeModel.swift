import CStreamFuse
import CStreamFuseNative
import Foundation
import StreamFuseCore

/// An open bundle, by the native library: checked, with its tokenizer, drafting tables, and the graphs that the native
/// engine runs. Any task may use it.
final class NativeModel: @unchecked Sendable {  // sf_model may be used by any threads
  /// The library's handle.
  let handle: OpaquePointer
  /// One self-test at a time.
  private let testing = NSLock()

  /// The facts that the loop needs.
  let spec: ModelSpec
  /// Defaults of the answers.
  let defaults: GenerationConfig
  /// The manifest of the bundle, JSON text.
  let manifest: Data
  /// The fields of the manifest that apps may need.
  let facts: Manifest
  /// Size in bytes of one sequence's cache on the native engine; 0 if another engine runs the bundle.
  let cacheBytes: Int

  /// Opens a bundle. `ownEngine` is that of `sf_model_options`.
  init(folder: URL, _ options: LoadOptions, ownEngine: Int32, progress: LoadProgress?) throws {
    guard let threads = Int32(exactly: options.threads ?? 0) else {
      throw StreamFuseError(.badArgument, "threads must be a small number, not \(options.threads ?? 0)")
    }
    var made: OpaquePointer?
    var native = sf_model_options()
    native.size = MemoryLayout<sf_model_options>.size
    native.threads = threads
    native.skip_hashes = options.checkHashes ? 0 : 1
    native.own_engine = ownEngine
    native.progress = progress?.handle
    do {
      let code = withCString(options.publicKey) { key in
        withCString(options.costFolder?.path(percentEncoded: false)) { costs in
          withCString(options.memoryFile?.path(percentEncoded: false)) { memory in
            native.public_key = key
            native.cost_folder = costs
            native.memory_file = memory
            return folder.withUnsafeFileSystemRepresentation { sf_model_load($0, &native, &made) }
          }
        }
      }
      try check(code, sf_model_error(made))
      var spec = sf_spec()
      spec.size = MemoryLayout<sf_spec>.size
      try check(sf_model_spec(made, &spec), sf_model_error(made))
      var sampling = sf_options()
      sampling.size = MemoryLayout<sf_options>.size
      try check(sf_model_default_options(made, &sampling), sf_model_error(made))
      self.spec = ModelSpec(spec)
      self.defaults = GenerationConfig(sampling).over(.coreDefaults)
      self.manifest = Data(String(cString: sf_model_manifest(made)).utf8)
      self.facts = try JSONDecoder().decode(Manifest.self, from: manifest)
      let engine = Data(String(cString: sf_model_engine(made)).utf8)
      self.cacheBytes = try JSONDecoder().decode(EngineFacts.self, from: engine).cache_bytes ?? 0
    } catch {
      sf_model_free(made)
      throw error
    }
    self.handle = made!
  }

  deinit { sf_model_free(handle) }

  /// Where the graphs are: `model.pte`, or the folder `model.mlpackage`.
  var graph: URL { URL(filePath: String(cString: sf_model_graph(handle))) }

  /// Whether the bundle has a chat template.
  var canChat: Bool { sf_model_can_chat(handle) != 0 }

  /// The names of the bundle's task adapters.
  var adapters: [String] {
    var names: [String] = []
    while let name = sf_model_adapter_name(handle, Int32(names.count)) { names.append(String(cString: name)) }
    return names
  }

  /// Time to open the bundle, in milliseconds.
  var loadMs: Double { sf_model_load_ms(handle) }

  /// ExecuTorch's backends that the library contains, each with nil if it can run here, or else the reason why not.
  static var backends: [String: String?] {
    guard let json = sf_backends() else { return [:] }
    return (try? JSONDecoder().decode([String: String?].self, from: Data(String(cString: json).utf8))) ?? [:]
  }

  /// The model of the app. `engine` runs the graphs if the native engine does not; `engineMs` is its load time.
  func model(engine: (any Engine)? = nil, engineMs: Double = 0) -> Model {
    log("\(facts.model.name) is loaded: backend \(facts.backend), \(Int(loadMs + engineMs)) ms")
    return Model(
      spec: spec, defaults: defaults, manifest: manifest, backend: facts.backend, loadMs: loadMs + engineMs, canChat: canChat,
      adapters: adapters,
      forget: { try self.forget() }, countTokens: { try self.countTokens($0) },
      selfTest: { try await blocking { try self.selfTest(engine) } }
    ) { use in
      try NativeSession(self, use, engine: engine, engineMs: engineMs)
    }
  }

  /// Erases the answers that `LoadOptions.memoryFile` keeps.
  func forget() throws { try check(sf_model_forget(handle), sf_model_error(handle)) }

  /// The report of the self-test, on the native engine, or on `engine`.
  private func selfTest(_ engine: (any Engine)?) throws -> SelfTest {
    var table = try engine?.makeTable(within: availableMemory()).table
    return try testing.withLock {  // the report is valid until the next one
      var json: UnsafePointer<CChar>?
      let code = withUnsafePointer(to: &table) { place in
        sf_model_self_test(
          handle, engine == nil ? nil : UnsafeRawPointer(place).assumingMemoryBound(to: sf_backend.self), &json)
      }
      try check(code, sf_model_error(handle))
      return try SelfTest(json: Data(String(cString: json!).utf8))
    }
  }

  /// The number of tokens of a text in a message.
  func countTokens(_ text: String) throws -> Int {
    var text = text
    var count: Int64 = 0
    let code = text.withUTF8 { bytes in
      bytes.withMemoryRebound(to: CChar.self) { sf_model_count_tokens(handle, $0.baseAddress, $0.count, &count) }
    }
    try check(code, sf_model_error(handle))
    return Int(count)
  }

  /// The native engine's description of the program.
  private struct EngineFacts: Decodable {
    /// Size of the cache of a full context.
    let cache_bytes: Int?
  }
}

/// Gives C's text to `body`; null for nil.
func withCString<Result>(_ text: String?, _ body: (UnsafePointer<CChar>?) throws -> Result) rethrows -> Result {
  guard let text else { return try body(nil) }
  return try text.withCString(body)
}
