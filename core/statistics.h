// What a text cost and what drafting gained: one object, the same keys in every language (docs/runtime.md).
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "costs.h"
#include "tree.h"

namespace streamfuse {

enum Phase { kPrefill, kDraft, kVerify, kAccept, kCommit, kSample, kPhases };

// Counted while the loop runs. Only delivered tokens are generated.
struct Statistics {
  double model_load_ms = 0.0, measure_ms = 0.0, first_token_ms = 0.0;  // measure_ms: until costs were known
  std::array<double, kPhases> ms{};
  int64_t prompt_tokens = 0, prefilled_tokens = 0;     // prefilled: those that the cache did not hold already
  int64_t generated_tokens = 0, emitted_tokens = 0;    // emitted: the stop token that ended the text too
  int64_t rounds = 0, passes = 0, streams_passes = 0;  // verify passes; those and plain ones
  int64_t proposed = 0, accepted = 0, near_ties = 0;
  std::array<int64_t, 4> accepted_of{};  // by source
  std::vector<int64_t> depth_proposed, depth_accepted, rank_offered, rank_accepted;
  std::vector<int64_t> widths;                                    // decode, then the verify methods: passes
  std::vector<std::pair<const char*, int64_t>> fallback_reasons;  // plain passes per reason, as they came up
  std::vector<double> cost_ms;                                    // expected of a full pass per method, or empty
  bool speculative = false;
  const char* fallback_reason = nullptr;  // of the whole text
  std::string finish_reason = "stopped";  // until the loop knows better: a caller may walk away at any token

  void clear();
  void count_pass(int64_t method, int64_t depth, int64_t drafted, const char* reason);
  void count_accepted(int64_t accepted, int64_t emitted);
  void count_rank(int64_t offers, int64_t rank);  // a visited node had so many children; -1: none was right
  double total_ms() const;
  std::string json(const Spec& spec) const;
};

}  // namespace streamfuse
