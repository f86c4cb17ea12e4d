// Sample and match: finds the path of a drafted tree that the model itself takes.
//
// At each node the next token is sampled exactly as in plain decoding, from the model's own distribution and the noise
// of its position (tests/traces/README.md). If a child holds that token, the path continues there. So drafts change how
// many passes a text takes, but never its tokens.
#pragma once

#include <cstdint>
#include <vector>

#include "constraint.h"
#include "generation.h"
#include "statistics.h"
#include "stopwatch.h"
#include "tree.h"

namespace streamfuse {

struct Path {
  std::vector<int64_t> tokens;     // chosen by the model
  std::vector<int32_t> rows;       // [tokens] of the tree: the row that each token follows, the root first
  std::vector<uint8_t> near_ties;  // [tokens] whether another engine's rounding might have chosen otherwise
  std::vector<float> log_probs;    // [tokens] as in sf_token; empty unless they are asked for
  std::vector<sf_top_token> top;   // [tokens, Generation::top_log_probs], or the vocabulary's size if that is less
  int64_t survivor = 0;            // index of the last row among those that the pass kept
  bool complete = false;           // the constraint allows no token after the last one

  void reserve(size_t rows);
};

class Acceptor {
 public:
  Acceptor(int64_t vocab_size, size_t history);

  // Finds the path through the first `nodes` rows of the tree of a pass, after `text`. It also ends at a stop token,
  // where the constraint allows no more tokens, and after `room` tokens. The tokens of the path, except a stop token,
  // are passed to the constraint's `accept`; null: no constraint. If a later choice fails, the path ends before it: the
  // tokens so far are delivered, and the next pass fails as plain decoding would. Throws Failure if the first choice
  // fails.
  void accept(const Tree& tree, int64_t nodes, const sf_results& results, const Generation& generation,
              Constraint* constraint, const std::vector<int64_t>& text, int64_t room, Statistics& statistics,
              Stopwatch& watch, Path& path);

 private:
  int64_t choose(const sf_results& results, int64_t survivor, const Sampling& sampling, Constraint* constraint,
                 Statistics& statistics, Stopwatch& watch);
  void add_log_probs(const sf_results& results, int64_t survivor, int64_t token, int64_t top, Path& path,
                     Statistics& statistics, Stopwatch& watch);

  int64_t vocab_size_;
  Sampler sampler_;
  std::vector<int64_t> history_;  // the text and the path, if choices need them
};

}  // namespace streamfuse
