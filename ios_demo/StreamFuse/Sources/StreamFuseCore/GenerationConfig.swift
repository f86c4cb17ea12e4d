import CStreamFuse

/// Options of one answer. A field that is nil takes the chat's default, then the bundle's (`Model.defaults`).
///
/// The names are the same in every language and on the command line. Ranges are checked when the answer begins: a
/// `StreamFuseError` with the code `badArgument` names the field and its range.
public struct GenerationConfig: Sendable, Equatable, Codable {
  /// Maximum number of tokens to generate; exported bundles default to 128.
  public var maxNewTokens: Int?
  /// 0 is greedy; higher is more varied.
  public var temperature: Double?
  /// Sample among the k most probable tokens; 0: off.
  public var topK: Int?
  /// Sample among the most probable tokens of this total probability; 1: off.
  public var topP: Double?
  /// Drop tokens below this share of the most probable one; 0: off.
  public var minP: Double?
  /// Above 1, tokens seen before are less probable; 1: off.
  public var repetitionPenalty: Double?
  /// The same seed gives the same text; with the backend `kernels`, also with and without speculation.
  public var seed: UInt64?
  /// The text ends before any of these.
  public var stop: [String]?
  /// Tokens that end the text, in addition to the model's own.
  public var stopTokenIDs: [Int]?
  /// Whether to treat the model's end-of-sequence tokens as ordinary tokens.
  public var ignoreEOS: Bool?
  /// False: one token per pass, the baseline. With the backend `kernels` the text is the same. Nil or true: drafts are
  /// used if the bundle has them; if they are not used, `Statistics.fallbackReason` says why.
  public var enableSpeculativeDecoding: Bool?
  /// Nodes per verify pass, one of `Model.widths`. Nil or 0: chosen for each pass by the latency measured on this
  /// device.
  public var width: Int?
  /// Whether to compute the log-probability of each token: `Piece.logProb`. The text is the same.
  public var logProbs: Bool?
  /// Number of most probable tokens to return per position, at most 20: `Piece.topLogProbs`. More than 0 implies
  /// `logProbs`.
  public var topLogProbs: Int?
  /// The answer is JSON that fits this schema. At most one of `schema`, `regex` and `grammar` is set;
  /// docs/structured.md says what is supported.
  public var schema: JSONSchema?
  /// The whole answer matches this regular expression.
  public var regex: String?
  /// The answer is in the language of this grammar, in Lark's syntax.
  public var grammar: String?
  /// Whether the answer to a chat with tools calls them. With `schema`, `regex` or `grammar`, `auto` means an answer that
  /// fits it, or one call. Nil: `auto`, or `never` with one of these.
  public var toolChoice: ToolChoice?

  /// A configuration in which every field is nil.
  public init() {}

  /// Names as in every language.
  enum CodingKeys: String, CodingKey {
    case maxNewTokens = "max_new_tokens"
    case temperature
    case topK = "top_k"
    case topP = "top_p"
    case minP = "min_p"
    case repetitionPenalty = "repetition_penalty"
    case seed, stop
    case stopTokenIDs = "stop_token_ids"
    case ignoreEOS = "ignore_eos"
    case enableSpeculativeDecoding = "speculative"
    case width
    case logProbs = "log_probs"
    case topLogProbs = "top_log_probs"
    case schema, regex, grammar
    case toolChoice = "tool_choice"
  }

  /// This configuration, with its nil fields taken from `defaults`. `schema`, `regex`, `grammar` and `toolChoice` are
  /// taken together: only if all are nil.
  public func over(_ defaults: GenerationConfig) -> GenerationConfig {
    var whole = self
    whole.maxNewTokens = maxNewTokens ?? defaults.maxNewTokens
    whole.temperature = temperature ?? defaults.temperature
    whole.topK = topK ?? defaults.topK
    whole.topP = topP ?? defaults.topP
    whole.minP = minP ?? defaults.minP
    whole.repetitionPenalty = repetitionPenalty ?? defaults.repetitionPenalty
    whole.seed = seed ?? defaults.seed
    whole.stop = stop ?? defaults.stop
    whole.stopTokenIDs = stopTokenIDs ?? defaults.stopTokenIDs
    whole.ignoreEOS = ignoreEOS ?? defaults.ignoreEOS
    whole.enableSpeculativeDecoding = enableSpeculativeDecoding ?? defaults.enableSpeculativeDecoding
    if schema == nil && regex == nil && grammar == nil && toolChoice == nil {
      (whole.schema, whole.regex, whole.grammar) = (defaults.schema, defaults.regex, defaults.grammar)
      whole.toolChoice = defaults.toolChoice
    }
    whole.width = width ?? defaults.width
    whole.logProbs = logProbs ?? defaults.logProbs
    whole.topLogProbs = topLogProbs ?? defaults.topLogProbs
    return whole
  }

  /// The core's own defaults.
  public static let coreDefaults: GenerationConfig = {
    var options = sf_options()
    options.size = MemoryLayout<sf_options>.size
    sf_default_options(&options)
    return GenerationConfig(options)
  }()

  /// The fields of the core's structure, stop tokens aside. Without a width, the planner chooses one.
  package init(_ options: sf_options) {
    maxNewTokens = Int(options.max_new_tokens)
    temperature = options.temperature
    topK = Int(options.top_k)
    topP = options.top_p
    minP = options.min_p
    repetitionPenalty = options.repetition_penalty
    seed = options.seed
    ignoreEOS = options.ignore_eos != 0
    enableSpeculativeDecoding = options.speculative != 0
    logProbs = options.log_probs != 0
    topLogProbs = Int(options.top_log_probs)
  }

  /// Calls `body` with the core's structure, whose pointers are valid during the call.
  package func withCOptions<Result>(_ body: (UnsafePointer<sf_options>) throws -> Result) throws -> Result {
    var options = sf_options()
    options.size = MemoryLayout<sf_options>.size
    sf_default_options(&options)
    if let maxNewTokens { options.max_new_tokens = Int64(maxNewTokens) }
    if let temperature { options.temperature = temperature }
    if let topK { options.top_k = Int64(topK) }
    if let topP { options.top_p = topP }
    if let minP { options.min_p = minP }
    if let repetitionPenalty { options.repetition_penalty = repetitionPenalty }
    if let seed { options.seed = seed }
    if let ignoreEOS { options.ignore_eos = ignoreEOS ? 1 : 0 }
    if let logProbs { options.log_probs = logProbs ? 1 : 0 }
    if let enableSpeculativeDecoding { options.speculative = enableSpeculativeDecoding ? 1 : 0 }
    if let topLogProbs {
      guard let count = Int32(exactly: topLogProbs) else {
        throw StreamFuseError(.badArgument, "top_log_probs must be between 0 and 20, not \(topLogProbs)")
      }
      options.top_log_probs = count
    }
    guard let nodes = Int32(exactly: width ?? 0) else {
      throw StreamFuseError(.badArgument, "width must be one of the bundle's widths, not \(width ?? 0)")
    }
    options.width = nodes
    return try (stopTokenIDs ?? []).map(Int64.init).withUnsafeBufferPointer { ids in
      options.stop_ids = ids.baseAddress
      options.stop_count = Int32(ids.count)
      return try body(&options)
    }
  }
}
