// The constraint along the paths of a draft: what may follow each drafted token, and what must.
//
// A draft visits the constraint's states as a prefix tree, which all sources of drafts share. The constraint itself has
// one state, so the guide moves it from node to node: it rolls back to the common ancestor and accepts the rest.
// Without a constraint everything may follow, and nothing must. An error of the constraint cuts the draft at that node
// and is not raised: it matters only if the model chooses that token, and then the acceptor raises it.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "constraint.h"

namespace streamfuse {

class Guide {
 public:
  // The constraint of the next text; null: none. It must outlive the text.
  void begin(Constraint* constraint);
  // A draft begins after the text, at state 0, of at most `widest` nodes.
  void begin_draft(int64_t widest);
  // Puts the constraint back to where the draft began.
  void end_draft() { move(0); }

  // allowed [tokens]: 1 if the token may follow this state. Counts those that may not.
  void allows(int32_t state, std::span<const int64_t> tokens, uint8_t* allowed);
  bool allows(int32_t state, int64_t token);
  // The most likely next token if only one text can follow this state; -1: there is a choice.
  int64_t forced(int32_t state);
  // The model chose this token after a state of the last draft. If the text was forced, but the model split it into
  // other tokens than the constraint, later drafts use the model's.
  void learn(int32_t state, int64_t chosen);
  // The state after an allowed token.
  int32_t after(int32_t state, int64_t token);

  int64_t refused() const { return refused_; }  // candidates in this text

  double forced_log_prob = 0.0;  // of a forced token, natural logarithm

 private:
  struct Node {
    int64_t token;
    int32_t parent, depth;
    int32_t child = -1, sibling = -1;  // the first child; the next child of the parent
    bool asked = false;                // whether `canonical` and `forced` are known
    bool end = false;                  // the token ends the text
    int64_t canonical = -1;            // first token of the forced text, as the constraint splits it; -1: a choice
    int64_t forced = -1;               // the same, as the model splits it
  };
  Node& node(int32_t state) { return nodes_[static_cast<size_t>(state)]; }
  void move(int32_t state);
  void ask_forced(int32_t state);

  Constraint* constraint_ = nullptr;
  int64_t widest_ = 0, refused_ = 0;
  std::vector<Node> nodes_;
  std::vector<int32_t> path_;
  std::unordered_map<int64_t, int64_t> preferred_;  // the model's token for a canonical one, if it is another
  int32_t at_ = 0;                                  // where the constraint is
};

}  // namespace streamfuse
