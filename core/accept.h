// Sample and match: the path of a drafted tree that the model itself takes.
//
// At each node the next token is chosen as plain decoding would choose it, from the model's own distribution and the
// number that belongs to its position (docs/random.md). Where a child carries that token, the path goes on. So a draft
// changes how many passes a text takes, and no token of it.
#pragma once

#include <cstdint>
#include <vector>

#include "generation.h"
#include "statistics.h"
#include "stopwatch.h"
#include "tree.h"

namespace streamfuse {

struct Path {
  std::vector<int64_t> tokens;     // chosen by the model
  std::vector<int32_t> rows;       // [tokens] of the tree: the row that each token follows, the root first
  std::vector<uint8_t> near_ties;  // [tokens] whether another engine's rounding might have chosen otherwise
  int64_t survivor = 0;            // place of the last row among those that the pass kept

  void reserve(size_t rows);
};

class Acceptor {
 public:
  Acceptor(int64_t vocab_size, size_t history);

  // Finds the path through the first `nodes` rows of the tree that a pass ran, after `text`. It ends where the text
  // does: at a stop token, or after `room` tokens. A choice that fails behind others ends it too: they are delivered,
  // and the next pass fails as plain decoding would. Throws Failure(SF_EXECUTION) if the first choice fails.
  void accept(const Tree& tree, int64_t nodes, const sf_results& results, const Generation& generation,
              const std::vector<int64_t>& text, int64_t room, Statistics& statistics, Stopwatch& watch, Path& path);

 private:
  int64_t choose(const sf_results& results, int64_t survivor, const Sampling& sampling, Statistics& statistics,
                 Stopwatch& watch);

  int64_t vocab_size_;
  Sampler sampler_;
  std::vector<int64_t> history_;  // the text and the path, where sampling needs them
};

}  // namespace streamfuse
