// A tree of drafted tokens: rows with a token, a parent and a depth. Row 0 is the root, the last accepted token; a
// parent has a smaller row than its children. The reference loop has the same in runtime/reference/tree.py.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "streamfuse_core.h"

namespace streamfuse {

struct Tree {
  struct Node {
    int64_t token, parent, depth;
    double log_prob;  // of the path from the root, natural logarithm
    uint8_t source;   // SF_STREAMS to SF_MEMORY; SF_MODEL for the root
    bool exact;       // its probability is a measured frequency, which needs no calibration
    int32_t state;    // of the constraint after this node (guide.h); 0 for the root
    bool forced;      // whether the constraint allows only one text after the parent
  };
  std::vector<Node> nodes;

  int64_t size() const { return static_cast<int64_t>(nodes.size()); }
  const Node& operator[](int64_t row) const { return nodes[static_cast<size_t>(row)]; }
  void set_root(int64_t token) { nodes.assign(1, {token, -1, 0, 0.0, SF_MODEL, false, 0, false}); }
  int64_t add(int64_t token, int64_t parent, double log_prob, uint8_t source, bool exact = false, int32_t state = 0,
              bool forced = false) {
    nodes.push_back({token, parent, (*this)[parent].depth + 1, log_prob, source, exact, state, forced});
    return size() - 1;
  }
  // The depth of the deepest of the first `rows` nodes.
  int64_t depth(int64_t rows) const {
    int64_t deepest = 0;
    for (int64_t row = 0; row < rows; ++row) deepest = std::max(deepest, (*this)[row].depth);
    return deepest;
  }
  // Whether `row` has a child with source SF_GRAMMAR.
  bool is_guided(int64_t row) const {
    for (int64_t other = row + 1; other < size(); ++other)
      if ((*this)[other].parent == row && (*this)[other].source == SF_GRAMMAR) return true;
    return false;
  }
  // Whether `row` already has a child with this token, and the constraint offers one of the two. A source's own
  // candidates may repeat a token.
  bool repeats_guided(int64_t row, int64_t token, bool guided) const {
    const int64_t known = child(row, token);
    return known > 0 && (guided || (*this)[known].source == SF_GRAMMAR);
  }
  // The row of the child of `row` with this token; 0 if there is none.
  int64_t child(int64_t row, int64_t token) const {
    for (int64_t other = row + 1; other < size(); ++other)
      if ((*this)[other].parent == row && (*this)[other].token == token) return other;
    return 0;
  }
};

constexpr double kLeastPath = -3.912023005428146;  // ln(0.02): less likely paths are never worth a row

// Candidates for a tree that grows best first, as a priority queue: the most probable path first, ties in order of
// insertion. Paths below `kLeastPath` are not inserted.
class Candidates {
 public:
  struct One {
    double log_prob;  // of the path
    int64_t parent, rank, order;
  };
  void reserve(size_t count) { heap_.reserve(count); }
  void clear() {
    heap_.clear();
    order_ = 0;
  }
  bool empty() const { return heap_.empty(); }
  void add(double log_prob, int64_t parent, int64_t rank);
  One take();

 private:
  static bool after(const One& a, const One& b);
  std::vector<One> heap_;
  int64_t order_ = 0;
};

// Merges two drafts of the same root, of at most `widest` nodes each, without allocating.
class TreeJoiner {
 public:
  explicit TreeJoiner(int64_t widest);
  // Adds the nodes of `other` to `tree`; a node in both gets the larger probability, which keeps parents before
  // children. Then calls `order`.
  void join(const Tree& other, int64_t width, Tree& tree);
  // Keeps the `width` best nodes, best first; ties keep their order.
  void order(int64_t width, Tree& tree);

 private:
  std::vector<int64_t> place_, order_;
  std::vector<Tree::Node> sorted_;
};

}  // namespace streamfuse
