// Prompt look-up (Saxena 2023): drafts what followed earlier occurrences of the last tokens, in prompt and text, here
// as a tree of several continuations. runtime/reference/lookup.py is the same algorithm, written to be read.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "guide.h"
#include "tree.h"

namespace streamfuse {

class LookUp {
 public:
  static constexpr int64_t kLongest = 8;  // maximum length of a match
  static constexpr int64_t kOffers = 3;   // maximum children of a node
  static constexpr int64_t kPlaces = 64;  // maximum earlier occurrences of a token to compare, latest first

  // For texts of at most this many tokens, and trees of at most this many nodes.
  LookUp(int64_t capacity, int64_t widest);

  // The text is now `tokens`; the first `kept` are the same as at the last call.
  void follow(const std::vector<int64_t>& tokens, int64_t kept);

  // Grows the most probable tree of at most `width` nodes and `depth` levels, and merges it into `tree`, best first.
  // False if nothing matches and nothing is forced; if it is true, the constraint may still refuse all that matches.
  bool join(const std::vector<int64_t>& tokens, int64_t width, int64_t depth, Guide& guide, Tree& tree);

  // The model chose these tokens after the root of the last `join` that found something.
  void learn(std::span<const int64_t> chosen);

 private:
  // How the latest occurrences of the longest match continue: a single one, two differ, two agree, three agree.
  enum Kind : int64_t { kAlone, kDiffer, kTwice, kThrice, kKinds };
  struct Match {
    int64_t length = 0;
    Kind kind = kAlone;
    int64_t count = 0;                    // of `next`
    std::array<int64_t, kOffers> next{};  // different tokens, the latest first
    std::array<bool, kOffers> refused{};  // by the constraint: neither a hit nor a miss of look-up
  };
  struct Seen {
    double hits, trials;
  };
  int32_t& latest(int64_t token, const std::vector<int64_t>& tokens);
  Match match(const std::vector<int64_t>& tokens, int64_t row);
  // How often a token of this rank was right after such a match.
  Seen& seen(const Match& match, int64_t rank) {
    return seen_[static_cast<size_t>(((match.length - 1) * kKinds + match.kind) * kOffers + rank)];
  }
  void offer(int64_t row, Guide& guide);

  std::vector<int32_t> slots_;   // hash table by token: its latest position in the text, counted from 1; 0: free
  std::vector<int32_t> before_;  // of each position: the previous one of the same token, counted from 1; 0: none
  std::array<Seen, kLongest * kKinds * kOffers> seen_;
  Tree tree_;                   // of the last join
  std::vector<Match> matches_;  // of its rows
  Candidates open_;
  TreeJoiner joiner_;
};

}  // namespace streamfuse
