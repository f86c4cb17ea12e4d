// The options of one text.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "sample.h"

namespace streamfuse {

struct Generation {
  int64_t max_new_tokens = 128;
  Sampling sampling;
  std::vector<int64_t> stop_ids;
  bool speculative = true;
  int64_t width = 0;                              // 0: chosen by the planner for each pass
  int32_t sources = 0;                            // what may draft, see sf_options; 0: all
  bool log_probs = false;                         // whether log-probabilities of tokens are computed
  int64_t top_log_probs = 0;                      // number of most probable tokens to report per position
  int64_t dropped_turns = 0, dropped_tokens = 0;  // for the statistics; see sf_options

  bool ends_text(int64_t token) const { return std::find(stop_ids.begin(), stop_ids.end(), token) != stop_ids.end(); }
};

}  // namespace streamfuse
