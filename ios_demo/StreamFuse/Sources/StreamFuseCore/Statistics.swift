import Foundation

/// Counters and times of one answer. The keys of its JSON are the same in every language (docs/runtime.md); times are
/// in milliseconds and cover the generation loop only, not the app's work between two tokens. A number that is not
/// finite is null in the JSON and nil here.
public struct Statistics: Sendable, Equatable, Codable {
  /// Length of the whole prompt, including the part already in the cache.
  public let promptTokens: Int
  /// Delivered tokens.
  public let generatedTokens: Int
  /// Load time of the model.
  public let modelLoadMs: Double?
  /// Measuring the latency of passes on this device; 0 if it was known already.
  public let measureMs: Double?
  /// Prefill of the prompt.
  public let prefillMs: Double?
  /// From the start to the first token, `measureMs` and `prefillMs` included.
  public let firstTokenMs: Double?
  /// Delivered tokens per second after prefill.
  public let decodeTokensPerSecond: Double?
  /// `prefilledTokens` per second of `prefillMs`.
  public let prefillTokensPerSecond: Double?
  /// Verify passes; 0 in plain decoding.
  public let rounds: Int
  /// Verify and decode passes.
  public let targetForwardPasses: Int
  /// Drafted tokens, accepted or not.
  public let draftTokensProposed: Int
  /// Drafted tokens that were delivered.
  public let draftTokensAccepted: Int
  /// Accepted / proposed.
  public let acceptanceRate: Double?
  /// Per depth of the draft, the share of passes that delivered a drafted token of that depth.
  public let acceptancePerDepth: [Double?]
  /// Tokens per pass; plain decoding has 1.
  public let meanAcceptedTokens: Double?
  /// Milliseconds per part of the loop: prefill, draft, verify, accept, commit, sample.
  public let timeMs: [String: Double?]
  /// Passes per method.
  public let widths: [String: Int]
  /// Whether drafts were to be used.
  public let speculative: Bool
  /// Why they were not, or why passes were plain; nil if neither happened.
  public let fallbackReason: String?
  /// `stop` (a stop token or stop string), `length` (`maxNewTokens`), `context` (the context is full), `incomplete`
  /// (one of these two limits came before `GenerationConfig.schema` or another constraint allowed an end) or `stopped`
  /// (ended early, from outside or by an error).
  public let finishReason: String
  /// Acceptance rate per rank of a candidate among its siblings.
  public let acceptancePerRank: [Double?]
  /// Plain passes that ran instead of drafted ones, per reason.
  public let fallbackReasons: [String: Int]
  /// Expected latency of a full pass of each method at the start of the answer.
  public let costMs: [String: Double?]
  /// Accepted drafted tokens per source.
  public let acceptedBySource: [String: Int]
  /// Tokens of the prompt that were not in the cache.
  public let prefilledTokens: Int
  /// Passes that computed only streams.
  public let streamsPasses: Int
  /// Choices so close that another engine's rounding could change them.
  public let nearTies: Int
  /// Drafted tokens that the constraint forces.
  public let forcedTokens: Int
  /// Candidates for drafts that the constraint refused.
  public let refusedDrafts: Int
  /// Part of `accept` in `timeMs`: computing which tokens the constraint allows next.
  public let maskMs: Double
  /// Turns that `ContextPolicy.dropOldest` dropped for this answer.
  public let droppedTurns: Int
  /// Tokens that were prefilled again although the cache had them before: of the remaining turns, if turns were dropped,
  /// or of a prefix that layers with a sliding window, convolution or linear attention cannot go back to.
  public let rereadTokens: Int
  /// Tokens of the prompt whose cache came from a stored prefix of the bundle.
  public let prefixTokens: Int
  /// Why a stored prefix of the bundle was not used; nil if none was refused.
  public let prefixRefused: String?

  /// Names as in every language.
  enum CodingKeys: String, CodingKey {
    case promptTokens = "prompt_tokens"
    case generatedTokens = "generated_tokens"
    case modelLoadMs = "model_load_ms"
    case measureMs = "measure_ms"
    case prefillMs = "prefill_ms"
    case firstTokenMs = "first_token_ms"
    case decodeTokensPerSecond = "decode_token_per_sec"
    case prefillTokensPerSecond = "prefill_token_per_sec"
    case rounds
    case targetForwardPasses = "target_forward_passes"
    case draftTokensProposed = "draft_tokens_proposed"
    case draftTokensAccepted = "draft_tokens_accepted"
    case acceptanceRate = "acceptance_rate"
    case acceptancePerDepth = "acceptance_per_depth"
    case meanAcceptedTokens = "mean_accepted_tokens"
    case timeMs = "time_ms"
    case widths, speculative
    case fallbackReason = "fallback_reason"
    case finishReason = "finish_reason"
    case acceptancePerRank = "acceptance_per_rank"
    case fallbackReasons = "fallback_reasons"
    case costMs = "cost_ms"
    case acceptedBySource = "accepted_by_source"
    case prefilledTokens = "prefilled_tokens"
    case streamsPasses = "streams_passes"
    case nearTies = "near_ties"
    case forcedTokens = "forced_tokens"
    case refusedDrafts = "refused_drafts"
    case maskMs = "mask_ms"
    case droppedTurns = "dropped_turns"
    case rereadTokens = "reread_tokens"
    case prefixTokens = "prefix_tokens"
    case prefixRefused = "prefix_refused"
  }

  /// Parses the JSON object of any language's statistics; unknown keys are ignored.
  public init(json: Data) throws {
    self = try JSONDecoder().decode(Statistics.self, from: json)
  }

  /// Those of an answer that was stopped before it began.
  static let stopped = Statistics()

  /// Counts nothing.
  private init() {
    (promptTokens, generatedTokens, prefilledTokens, prefixTokens) = (0, 0, 0, 0)
    (modelLoadMs, measureMs, prefillMs, firstTokenMs) = (0, 0, 0, 0)
    (decodeTokensPerSecond, prefillTokensPerSecond) = (0, 0)
    (rounds, targetForwardPasses, streamsPasses) = (0, 0, 0)
    (draftTokensProposed, draftTokensAccepted, forcedTokens, refusedDrafts) = (0, 0, 0, 0)
    (acceptanceRate, meanAcceptedTokens, acceptancePerDepth, acceptancePerRank) = (0, 0, [], [])
    (timeMs, widths, costMs, acceptedBySource, maskMs) = ([:], [:], [:], [:], 0)
    (speculative, fallbackReason, fallbackReasons, finishReason) = (false, nil, [:], "stopped")
    (nearTies, droppedTurns, rereadTokens, prefixRefused) = (0, 0, 0, nil)
  }
}
