import Foundation

/// An open bundle: facts, drafting tables, loaded graphs, tokenizer. Any task may use it, and it lives as long as its
/// chats. `StreamFuse.load` opens a bundle; create one yourself to run token ids on your own engine.
public final class Model: Sendable {
  /// What a session is for.
  package enum Use: Sendable {
    /// A conversation that begins with these turns.
    case chat(
      instructions: String?, history: [Message], tools: [Tool], templateVariables: [String: JSONValue],
      contextPolicy: ContextPolicy, adapter: String?)
    /// A continuation of plain text.
    case completion(adapter: String?)
  }

  /// The facts that the loop needs.
  public let spec: ModelSpec
  /// The defaults of all answers.
  public let defaults: GenerationConfig
  /// The manifest as JSON text; empty for a model that was made by hand.
  public let manifest: Data
  /// What runs the graphs, as the manifest names it: `kernels`, `xnnpack`, `mlprogram`, ...; nil for a model that was
  /// made by hand.
  public let backend: String?
  /// Load time in milliseconds.
  public let loadMs: Double
  /// Whether it can chat.
  public let canChat: Bool
  /// The names of the bundle's task adapters.
  public let adapters: [String]

  /// Erases the answers of earlier conversations.
  private let forgetAnswers: @Sendable () throws -> Void
  /// Repeats the recorded passes.
  private let testDevice: @Sendable () async throws -> SelfTest
  /// The sessions that are alive, for `trim`.
  private let sessions = Locked<[Weak]>([])
  /// Counts the tokens of a text in a message.
  private let tokensOf: @Sendable (String) throws -> Int
  /// Makes what writes the answers of one session.
  private let makeWriter: @Sendable (Use) throws -> any Writer

  /// A model with your own engine, used with token ids (`session`).
  ///
  /// - Parameters:
  ///   - tables: drafting tables; none drafts from streams and look-up alone.
  ///   - defaults: defaults of the answers.
  public convenience init(
    spec: ModelSpec, tables: DraftTables = .none, engine: any Engine, defaults: GenerationConfig = .coreDefaults
  ) throws {
    let core = try CoreModel(spec, tables)
    self.init(spec: spec, defaults: defaults.over(.coreDefaults), manifest: Data(), backend: nil, loadMs: 0, canChat: false) {
      guard case .completion(adapter: nil) = $0 else {
        throw StreamFuseError(.badArgument, "this model has no tokenizer, chat template or adapters; use session() and token ids")
      }
      return try CoreSession(core, engine.makeTable(within: availableMemory()))
    }
  }

  /// A model whose sessions are written by what `makeWriter` makes.
  package init(
    spec: ModelSpec, defaults: GenerationConfig, manifest: Data, backend: String?, loadMs: Double, canChat: Bool,
    adapters: [String] = [],
    forget: @escaping @Sendable () throws -> Void = {},
    countTokens: @escaping @Sendable (String) throws -> Int = { _ in
      throw StreamFuseError(.badArgument, "this model has no tokenizer; load a bundle to count the tokens of a text")
    },
    selfTest: @escaping @Sendable () async throws -> SelfTest = {
      throw StreamFuseError(.badFile, "this model has no self-test; load a bundle to test this device")
    },
    makeWriter: @escaping @Sendable (Use) throws -> any Writer
  ) {
    self.spec = spec
    self.defaults = defaults
    self.manifest = manifest
    self.backend = backend
    self.loadMs = loadMs
    self.canChat = canChat
    self.adapters = adapters
    self.forgetAnswers = forget
    self.tokensOf = countTokens
    self.testDevice = selfTest
    self.makeWriter = makeWriter
  }

  /// Erases the answers that `LoadOptions.memoryFile` keeps, in memory and in the files, those of adapters too. Answers
  /// that are still being generated are added when they end. It does nothing without a `memoryFile`.
  ///
  /// Throws `StreamFuseError` (`.badFile`) if a file cannot be emptied.
  public func forget() throws { try forgetAnswers() }

  /// The number of tokens of a text in a message of a chat, without what the chat template adds. Throws
  /// `StreamFuseError` for a model that was made by hand, which has no tokenizer.
  public func countTokens(_ text: String) throws -> Int { try tokensOf(text) }

  /// Repeats the passes that the exporter recorded in the bundle, and compares their outputs: whether this device
  /// computes what it should. While it runs, it needs as much memory as one more chat; it takes half a second to
  /// several seconds. Differences are also logged.
  ///
  /// Throws `StreamFuseError` (`.badFile`) if the bundle has no self-test or it is damaged, and for a model that was
  /// made by hand.
  public func selfTest() async throws -> SelfTest {
    let found = try await testDevice()
    for difference in found.differences { log("self-test: \(difference)") }
    return found
  }

  /// Drops the caches of all chats and completions that are not answering, and gives their memory back to the system:
  /// `Session.trim`. The weights are mapped files, which the system drops by itself. Throws the first `StreamFuseError`
  /// after the other caches are dropped.
  public func trim() async throws {
    var failure: (any Error)?
    // One that answers would be waited for, a long prompt's prefill for seconds.
    for session in sessions.withLock({ $0.compactMap(\.session) }) where !session.isAnswering {
      do { try await session.trimIfIdle() } catch { failure = failure ?? error }
    }
    if let failure { throw failure }
  }

  /// Maximum number of tokens of prompt and answer together.
  public var contextLength: Int { spec.capacity }

  /// Whether the bundle can draft.
  public var hasSpeculativeDecodingSupport: Bool { !spec.verify.isEmpty }

  /// Values for `GenerationConfig.width`, ascending; empty if the bundle has no verify methods.
  public var widths: [Int] { spec.verify.map(\.rows).filter { $0 > 1 }.sorted() }

  /// A conversation with its own cache, so only new tokens are prefilled. Its first request makes the engine, and says
  /// what is wrong with it.
  ///
  /// - Parameters:
  ///   - instructions: a system message, which `reset` keeps.
  ///   - history: earlier turns, for example of another bundle's chat; `reset` keeps them too.
  ///   - tools: functions that the model may call.
  ///   - templateVariables: of the chat template, such as `["enable_thinking": .boolean(false)]`, which may include
  ///     `documents`.
  ///   - contextPolicy: what happens when the next question does not fit into the context.
  ///   - adapter: one of `adapters`, for the whole conversation; nil: the base model.
  ///   - configure: defaults of its answers.
  public func chat(
    instructions: String? = nil, history: [Message] = [], tools: [Tool] = [],
    templateVariables: [String: JSONValue] = [:], contextPolicy: ContextPolicy = .fail,
    adapter: String? = nil, _ configure: (inout GenerationConfig) -> Void = { _ in }
  ) -> Chat {
    let use = Use.chat(
      instructions: instructions, history: history, tools: tools, templateVariables: templateVariables,
      contextPolicy: contextPolicy, adapter: adapter)
    return Chat(session(use, configure), tools: tools)
  }

  /// A continuation of plain text, without a chat template.
  ///
  /// - Parameters:
  ///   - adapter: one of `adapters`; nil: the base model.
  ///   - configure: defaults of its answers.
  public func completion(
    adapter: String? = nil, _ configure: (inout GenerationConfig) -> Void = { _ in }
  ) -> Completion {
    Completion(session(.completion(adapter: adapter), configure))
  }

  /// A sequence of tokens with its own cache. `configure` sets the defaults of its answers.
  public func session(_ configure: (inout GenerationConfig) -> Void = { _ in }) -> Session {
    session(.completion(adapter: nil), configure)
  }

  /// A sequence for one use.
  private func session(_ use: Use, _ configure: (inout GenerationConfig) -> Void) -> Session {
    var config = GenerationConfig()
    configure(&config)
    let made = Session(defaults: config.over(defaults), capacity: spec.capacity) { [makeWriter] in try makeWriter(use) }
    sessions.withLock {
      $0.removeAll { $0.session == nil }
      $0.append(Weak(session: made))
    }
    return made
  }

  /// A session that others keep.
  private struct Weak: Sendable {
    /// Nil once it is gone.
    weak var session: Session?
  }
}
