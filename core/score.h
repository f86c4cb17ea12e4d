// Scores given tokens: how probable the model finds each of them after the tokens before it.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "engine.h"
#include "streamfuse_core.h"

namespace streamfuse {

// Where the results of `score` go; see sf_sequence_score.
struct Scores {
  int64_t top_count;
  float* log_probs;   // [n - from]
  sf_top_token* top;  // [n - from, top_count]
};

// Processes the tokens of `text` that are not in the cache, except the last one, and scores those from `from` on; at
// most from - 1 tokens are cached. The tokens before text[from - 1] are prefilled, the others run as chains in the
// widest method that prunes nothing. Throws Failure(SF_CANCELLED) if `stopped` is true before a pass, and as the engine
// does.
void score(const Spec& spec, Engine& engine, std::span<const int64_t> text, int64_t from, const Scores& out,
           const std::function<bool()>& stopped);

}  // namespace streamfuse
