import Foundation

/// A bundle that is open: facts, drafting tables, loaded graphs, tokenizer. Any task may use it, and it lives as long as
/// its chats. `StreamFuse.load` opens a bundle; make one by hand for an engine or a tokenizer of one's own.
public final class Model: Sendable {
  /// Makes the text around the tokens of one session, which begins with these messages.
  public typealias TextMaker = @Sendable ([Message]) throws -> any SessionText

  /// The facts that the loop needs.
  public let spec: ModelSpec
  /// The defaults of all answers.
  public let defaults: GenerationConfig
  /// The manifest as JSON text; empty for a model that was made by hand.
  public let manifest: Data
  /// What runs the graphs, as the manifest names it: `kernels`, `xnnpack`, `mlprogram`, ...; nil for a model that was
  /// made by hand.
  public let backend: String?
  /// Milliseconds that loading took.
  public let loadMs: Double
  /// Whether it can chat.
  public let canChat: Bool

  /// The core's model.
  private let core: CoreModel
  /// The loaded graphs.
  private let engine: any Engine
  /// Makes the text around tokens.
  private let makeText: TextMaker
  /// Where measured costs of passes are kept.
  private let costFolder: URL?

  /// A model on an engine of one's own.
  ///
  /// - Parameters:
  ///   - tables: drafting tables; none drafts from streams and look-up alone.
  ///   - defaults: what answers take that do not say otherwise.
  ///   - costFolder: where measured costs of passes are kept; nil measures them anew in each session.
  ///   - text: the tokenizer; nil speaks token ids alone.
  public init(
    spec: ModelSpec, tables: DraftTables = .none, engine: any Engine, defaults: GenerationConfig = .coreDefaults,
    manifest: Data = Data(), backend: String? = nil, loadMs: Double = 0, costFolder: URL? = nil, canChat: Bool = false, text: TextMaker? = nil
  ) throws {
    self.core = try CoreModel(spec, tables)
    self.spec = spec
    self.engine = engine
    self.defaults = defaults.over(.coreDefaults)
    self.manifest = manifest
    self.backend = backend
    self.loadMs = loadMs
    self.costFolder = costFolder
    self.canChat = canChat
    self.makeText = text ?? { _ in TokensOnly() }
  }

  /// How many tokens prompt and answer may have together.
  public var contextLength: Int { spec.capacity }

  /// Whether the bundle can draft.
  public var hasSpeculativeDecodingSupport: Bool { !spec.verify.isEmpty }

  /// Values for `GenerationConfig.width`, ascending; empty where the bundle has no verify methods.
  public var widths: [Int] { spec.verify.map(\.rows).filter { $0 > 1 }.sorted() }

  /// A conversation with a cache of its own, so that only new words are read. Its first request makes the engine, and
  /// says what is wrong with it.
  ///
  /// - Parameters:
  ///   - instructions: a system message, which stays through `reset`.
  ///   - history: earlier turns, for example of another bundle's chat; they stay too.
  ///   - configure: defaults of its answers.
  public func chat(
    instructions: String? = nil, history: [Message] = [], _ configure: (inout GenerationConfig) -> Void = { _ in }
  ) -> Chat {
    let first = (instructions.map { [Message(role: .system, content: $0)] } ?? []) + history
    return Chat(session(first, configure))
  }

  /// Plain text that is continued, without a chat template. `configure` sets the defaults of its answers.
  public func completion(_ configure: (inout GenerationConfig) -> Void = { _ in }) -> Completion {
    Completion(session([], configure))
  }

  /// A sequence of tokens with a cache of its own. `configure` sets the defaults of its answers.
  public func session(_ configure: (inout GenerationConfig) -> Void = { _ in }) -> Session { session([], configure) }

  /// A sequence that begins with these messages.
  private func session(_ messages: [Message], _ configure: (inout GenerationConfig) -> Void) -> Session {
    var config = GenerationConfig()
    configure(&config)
    let (core, engine, costs, loadMs, makeText) = (core, engine, costFile, loadMs, makeText)
    return Session(
      .init(
        core: {
          try CoreSession(
            core, engine.makeTable(available: availableMemory()), costFile: costs, device: engine.device, loadMs: loadMs)
        },
        text: { try makeText(messages) }),
      defaults: config.over(defaults))
  }

  /// The file of measured costs for this bundle on this device. The folder may be read-only: then they are measured anew.
  private var costFile: URL? {
    guard let costFolder else { return nil }
    try? FileManager.default.createDirectory(at: costFolder, withIntermediateDirectories: true)
    // Any name that differs with bundle and device will do: the core checks both inside the file.
    let key = (spec.identity + engine.device).utf8.reduce(0xcbf2_9ce4_8422_2325 as UInt64) { ($0 ^ UInt64($1)) &* 0x100_0000_01b3 }
    return costFolder.appending(path: String(key, radix: 16) + ".costs")
  }
}

/// The text of a session that speaks token ids alone: none.
private final class TokensOnly: SessionText {
  /// Refuses.
  func encode(_ prompt: String) throws -> [Int64] {
    throw StreamFuseError(.badArgument, "this model has no tokenizer; give it token ids")
  }
  /// Refuses stop strings.
  func begin(stops: [String]) throws {
    guard stops.isEmpty else { throw StreamFuseError(.badArgument, "stop strings need a tokenizer, and this model has none") }
  }
  /// No text.
  func push(_ token: Int64) -> (text: String, stopped: Bool) { ("", false) }
  /// No text.
  func end() -> String { "" }
}
