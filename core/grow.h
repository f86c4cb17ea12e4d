// Builds the most probable tree from the streams of one node, sharpened by the parent term, or from the n-gram table
// (docs/contracts.md, section 8). runtime/reference/draft.py and ngram_table.py compute the same in numpy, bit for bit.
#pragma once

#include <span>
#include <vector>

#include "coupling.h"
#include "guide.h"
#include "model.h"
#include "tree.h"

namespace streamfuse {

constexpr int64_t kTableDepth = 6;    // levels of a tree of the n-gram table
constexpr int64_t kTableContext = 8;  // maximum tokens of a context

class StreamGrower {
 public:
  explicit StreamGrower(const Model& model);

  // ids, log_probs: [num_streams, top_k] of the node that was accepted last; null: only forced tokens are drafted. At
  // most `width` nodes and min(depth, num_streams) levels below the root, and `depth` levels of forced tokens; rows are
  // ordered by log-probability, ties by depth, parent's row and candidate's rank, so that a narrower tree is a prefix
  // of a wider one. Throws Failure(SF_EXECUTION) for a token outside the stream vocabulary.
  void grow(int64_t root, const int64_t* ids, const float* log_probs, int64_t width, int64_t depth,
            const Coupling& coupling, Guide& guide, Tree& out);

 private:
  struct Candidate {
    double log_prob;
    int64_t depth, parent, rank, token;  // rank -1: forced
  };
  static bool before(const Candidate& a, const Candidate& b);
  void find_slots(const int64_t* ids, int64_t count);
  void offer(const Tree& tree, int64_t row, const int64_t* ids, const float* log_probs, int64_t levels, int64_t room,
             const Coupling& coupling, Guide& guide);
  void prepare(int64_t level, const float* own);
  void score(int64_t level, int64_t parent, const float* log_probs);
  void couple(int64_t level, const int64_t* ids, const Coupling& coupling);
  void restrict_to_allowed(int32_t state, const int64_t* ids, Guide& guide);
  void insert(const Candidate& child, int64_t room);

  const Model& model_;
  std::vector<double> scores_, terms_;
  // Per level, for all levels up to the deepest reached: the candidates' rows of parent_right as doubles,
  // [level, i, candidate] with i below the parent term's rank; and the sum of the candidates' probabilities before the
  // parent term.
  std::vector<double> right_rows_, listed_mass_;
  std::vector<double> noise_;     // of the candidates of the streams that were used so far
  std::vector<uint8_t> allowed_;  // of the candidates of one stream
  std::vector<int32_t> slots_;    // of each candidate of each stream
  std::vector<Candidate> open_;
};

class TableGrower {
 public:
  explicit TableGrower(const Model& model);
  bool exists() const { return model_.tables.contexts > 0; }

  // After a text, whose last token is the root. At most `width` nodes and min(depth, kTableDepth) levels, not counting
  // forced tokens; ties in the order in which they were found; paths below a probability of 0.02 are left out.
  void grow(std::span<const int64_t> text, int64_t width, int64_t depth, const Coupling& coupling, Guide& guide,
            Tree& out);

 private:
  struct Entry {
    int64_t token;
    double log_prob;
  };
  struct Span {
    size_t begin, end;  // of entries_
  };
  void offer(const Tree& tree, int64_t parent, Guide& guide);
  void offer_entry(const Tree& tree, int64_t parent, int64_t rank, Guide& guide);
  Span entries(const Tree& tree, int64_t row, const Coupling& coupling);
  int64_t longest_context(const Tree& tree, int64_t row) const;
  void couple(int64_t depth, std::span<Entry> entries, const Coupling& coupling);
  // The index of a key in keys[first, end); `end` if it is not there.
  int64_t find(int64_t key, int64_t first, int64_t end) const;

  const Model& model_;
  std::span<const int64_t> text_;
  std::vector<Entry> entries_;  // that follow the rows, the most probable first
  std::vector<double> noise_, log_probs_;
  std::vector<Span> children_;   // of each row
  std::vector<int64_t> levels_;  // of each row: its depth, not counting forced tokens
  Candidates open_;              // for each row, its best child that is not in the tree yet
};

}  // namespace streamfuse
