// Drafts without training: what followed the last few tokens when they stood in the text before (prompt look-up, Saxena
// 2023), over prompt and generated text. The latest occurrence wins.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "tree.h"

namespace streamfuse {

class LookUp {
 public:
  static constexpr int64_t kShortest = 2, kLongest = 4;  // tokens that must be equal; one alone says too little
  static constexpr int64_t kMostTokens = 8;              // proposed at once

  explicit LookUp(int64_t capacity);

  // The text is `tokens` now, of which the first `kept` are as they were at the last call.
  void follow(const std::vector<int64_t>& tokens, int64_t kept);

  // Joins what followed the longest match of the text's end to the tree, best first again, at most `width` nodes. A
  // node that both propose takes the larger probability, which keeps parents before children. False where nothing
  // matches.
  bool join(const std::vector<int64_t>& tokens, int64_t width, int64_t depth, Tree& tree);

  // The model chose these tokens after the root of the last `join` that found something.
  void learn(std::span<const int64_t> chosen);

 private:
  static constexpr int64_t kLengths = kLongest - kShortest + 1;
  int32_t& slot(int64_t length, const int64_t* tokens, int64_t end);
  static int64_t strength(int64_t match, int64_t depth) {
    return (match + depth < kLongest ? match + depth : kLongest) - kShortest;
  }

  std::array<std::vector<int32_t>, kLengths> places_;  // hash tables: where what followed a run of tokens stands
  int64_t followed_ = 0;
  // How often chains come true, per length of the match, which grows by one with each token that does.
  std::array<double, kLengths> hits_{0.6, 1.2, 1.8}, trials_{3.0, 3.0, 3.0};
  std::vector<int64_t> chain_;  // of the last join
  int64_t match_ = 0;
  TreeJoiner joiner_;
};

}  // namespace streamfuse
