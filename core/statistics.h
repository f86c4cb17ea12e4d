// Statistics of a text: time, passes and acceptance. The JSON keys are the same in every language (docs/runtime.md).
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "costs.h"
#include "tree.h"

namespace streamfuse {

enum Phase { kPrefill, kDraft, kVerify, kAccept, kCommit, kSample, kPhases };

// Counted while the loop runs. Only delivered tokens count as generated.
struct Statistics {
  double model_load_ms = 0.0, measure_ms = 0.0, first_token_ms = 0.0;  // measure_ms: time to measure costs
  std::array<double, kPhases> ms{};
  int64_t prompt_tokens = 0, prefilled_tokens = 0;     // prefilled: those that were not in the cache
  int64_t generated_tokens = 0, emitted_tokens = 0;    // emitted: also a final stop token
  int64_t rounds = 0, passes = 0, streams_passes = 0;  // rounds: verify passes; passes: verify and plain
  int64_t proposed = 0, accepted = 0, near_ties = 0;
  int64_t forced = 0, refused = 0;       // drafts that the constraint forced; candidates that it refused
  int64_t dropped_turns = 0;             // turns that were dropped because the context was full
  int64_t reread_tokens = 0;             // tokens that are prefilled again although the cache had them
  int64_t prefix_tokens = 0;             // tokens of the prompt whose cache came from a stored prefix
  std::string prefix_refused;            // why a stored prefix was not used; empty: none was refused
  double mask_ms = 0.0;                  // part of the phase `accept`: computing what the constraint allows
  std::array<int64_t, 6> accepted_of{};  // by source
  std::vector<int64_t> depth_proposed, depth_accepted, rank_offered, rank_accepted;
  std::vector<int64_t> widths;                                    // decode, then the verify methods: passes
  std::vector<std::pair<const char*, int64_t>> fallback_reasons;  // plain passes per reason, in order of occurrence
  std::vector<double> cost_ms;                                    // expected cost of a full pass per method, or empty
  bool speculative = false;
  const char* fallback_reason = nullptr;  // of the whole text
  std::string finish_reason = "stopped";  // the default, since the caller may stop at any token

  void reserve(const Spec& spec);  // room for all that a text can count, so that its passes do not allocate
  void clear();
  void count_pass(int64_t method, const Tree& tree, int64_t nodes, const char* reason);
  void count_accepted(int64_t accepted, int64_t emitted);
  void count_rank(int64_t offers, int64_t rank);  // of a node on the path with `offers` children; -1: none accepted
  double total_ms() const;
  std::string json(const Spec& spec) const;
};

}  // namespace streamfuse
