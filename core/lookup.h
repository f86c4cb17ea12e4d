// Drafts without training: what followed the end of the text where it stood in the text before, prompt included (prompt
// look-up, Saxena 2023), here as a tree of several continuations. runtime/reference/lookup.py is the same for the eye.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "tree.h"

namespace streamfuse {

class LookUp {
 public:
  static constexpr int64_t kLongest = 8;  // tokens of a match that are compared
  static constexpr int64_t kOffers = 3;   // different tokens that are drafted after one node
  static constexpr int64_t kPlaces = 64;  // earlier places of a token that are compared, the latest first

  // For texts of so many tokens, and trees of so many nodes at most.
  LookUp(int64_t capacity, int64_t widest);

  // The text is `tokens` now, of which the first `kept` are as they were at the last call.
  void follow(const std::vector<int64_t>& tokens, int64_t kept);

  // Grows the most probable tree of `width` nodes and `depth` levels at most, and joins it to `tree`, best first again.
  // False where nothing matches.
  bool join(const std::vector<int64_t>& tokens, int64_t width, int64_t depth, Tree& tree);

  // The model chose these tokens after the root of the last `join` that found something.
  void learn(std::span<const int64_t> chosen);

 private:
  // How the latest places of the longest match went on: there is one, the latest two differ, two agree, three agree.
  enum Kind : int64_t { kAlone, kDiffer, kTwice, kThrice, kKinds };
  struct Match {
    int64_t length = 0;
    Kind kind = kAlone;
    int64_t count = 0;                    // of `next`
    std::array<int64_t, kOffers> next{};  // different tokens, the latest first
  };
  struct Seen {
    double hits, trials;
  };
  int32_t& latest(int64_t token, const std::vector<int64_t>& tokens);
  Match match(const std::vector<int64_t>& tokens, int64_t row);
  // How often a token of this rank came true after such a match.
  Seen& seen(const Match& match, int64_t rank) {
    return seen_[static_cast<size_t>(((match.length - 1) * kKinds + match.kind) * kOffers + rank)];
  }
  void offer(int64_t row);

  std::vector<int32_t> slots_;   // hash table by token: its latest place in the text, counted from 1; 0 is free
  std::vector<int32_t> before_;  // of each place: the one before it of the same token, likewise
  std::array<Seen, kLongest * kKinds * kOffers> seen_;
  Tree tree_;                   // of the last join
  std::vector<Match> matches_;  // of its rows
  Candidates open_;
  TreeJoiner joiner_;
};

}  // namespace streamfuse
