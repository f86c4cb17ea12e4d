import Foundation
import StreamFuseCore

/// A writer without tokens, turns or a cache, for tests that script its answers.
package protocol StatelessWriter: Writer {}

extension StatelessWriter {
  package func finish() {}
  package func stop() {}
  package func prepare() {}
  package func score(_ text: String, _ answer: String) -> [Double] { [] }
  package func tokens() -> [Int] { [] }
  package func usedTokens() -> Int { 0 }
  package func messages() -> [Message] { [] }
  package func reset() {}
  package func trim() {}
  package func save(to file: URL) {}
  package func restore(from file: URL) {}
}

extension Statistics {
  /// The statistics of a scripted answer: all other counts are zero.
  package static func scripted(
    promptTokens: Int = 0, prefilledTokens: Int = 0, generatedTokens: Int = 0, finishReason: String = "stop"
  ) throws -> Statistics {
    var json: [String: Any] = [
      "speculative": false, "finish_reason": finishReason, "prompt_tokens": promptTokens,
      "prefilled_tokens": prefilledTokens, "generated_tokens": generatedTokens,
    ]
    let counts = [
      "rounds", "target_forward_passes", "draft_tokens_proposed", "draft_tokens_accepted", "streams_passes",
      "near_ties", "forced_tokens", "refused_drafts", "mask_ms", "dropped_turns", "reread_tokens", "prefix_tokens",
    ]
    for name in counts { json[name] = 0 }
    for name in ["acceptance_per_depth", "acceptance_per_rank"] { json[name] = [Int]() }
    for name in ["time_ms", "widths", "fallback_reasons", "cost_ms", "accepted_by_source"] {
      json[name] = [String: Int]()
    }
    return try Statistics(json: JSONSerialization.data(withJSONObject: json))
  }
}
