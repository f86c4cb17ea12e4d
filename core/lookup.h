// Prompt look-up (Saxena 2023): drafts what followed the longest match of the last tokens, in the current text and in
// earlier answers (memory.h), here as a tree of several continuations. runtime/reference/lookup.py is the same
// algorithm without a memory, and simpler to read.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "coupling.h"
#include "guide.h"
#include "memory.h"
#include "suffix_index.h"
#include "tree.h"

namespace streamfuse {

class LookUp {
 public:
  static constexpr int64_t kLongest = SuffixIndex::kLongest;  // maximum length of a match
  static constexpr int64_t kOffers = 3;                       // maximum children of a node
  static constexpr int64_t kPlaces = 64;                      // maximum occurrences of the longest match to compare

  // For texts of at most this many tokens, and trees of at most this many nodes. The memory may be null.
  LookUp(int64_t capacity, int64_t widest, std::shared_ptr<const Memory> memory = nullptr);

  // A text begins with these tokens; the first `kept` are the same as at the last call. Answers in the memory that
  // these tokens contain are skipped, because look-up finds them in the text. `in_text`, `in_memory`: where to search.
  void begin(const std::vector<int64_t>& tokens, int64_t kept, bool in_text = true, bool in_memory = true);
  // The text has grown to `tokens`.
  void follow(const std::vector<int64_t>& tokens);

  // Grows the most probable tree of at most `width` nodes and `depth` levels, and merges it into `tree`, best first.
  // False if nothing matches and nothing is forced; if it is true, the constraint may still refuse all that matches.
  bool join(int64_t width, int64_t depth, const Coupling& coupling, Guide& guide, Tree& tree);

  // The model chose these tokens after the root of the last `join` that found something.
  void learn(std::span<const int64_t> chosen);

 private:
  // How the latest occurrences of the longest match continue: a single one, two differ, two agree, three agree.
  enum Kind : int64_t { kAlone, kDiffer, kTwice, kThrice, kKinds };
  struct Match {
    int64_t length = 0;
    Kind kind = kAlone;
    bool remembered = false;              // it is longer in the memory than in the text
    int64_t count = 0;                    // of `next`
    std::array<int64_t, kOffers> next{};  // different tokens, the latest first
    std::array<bool, kOffers> refused{};  // by the constraint: neither a hit nor a miss of look-up
    int64_t places = 0, agree = 0;        // occurrences; the first ones, all of which continue alike

    void add(int64_t same, int64_t token);
    void set_kind();
  };
  struct Seen {
    double hits, trials;
  };
  Match match(int64_t row) const;
  // How often a token of this rank was right after such a match.
  Seen& seen(const Match& match, int64_t rank) {
    const int64_t kind = match.kind + (match.remembered ? int64_t{kKinds} : 0);
    return seen_[static_cast<size_t>(((match.length - 1) * 2 * kKinds + kind) * kOffers + rank)];
  }
  void offer(int64_t row, const Coupling& coupling, Guide& guide);

  SuffixIndex text_;
  std::array<Seen, kLongest * 2 * kKinds * kOffers> seen_;  // by `remembered` too
  std::shared_ptr<const Memory> memory_;
  bool in_text_ = true, in_memory_ = true;
  std::vector<uint32_t> own_;   // answers in the memory that the text contains, ascending
  Tree tree_;                   // of the last join
  std::vector<Match> matches_;  // of its rows
  Candidates open_;
  TreeJoiner joiner_;
};

}  // namespace streamfuse
