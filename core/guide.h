// The constraint along the paths of a draft: what may follow each drafted token, and what must.
//
// A draft visits the constraint's states as a prefix tree, which all sources of drafts share. The constraint itself has
// one state, so the guide moves it from node to node: it rolls back to the common ancestor and accepts the rest.
// Without a constraint everything may follow, and nothing must.
#pragma once

#include <cstdint>
#include <span>
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
  // The token that must follow this state; -1: there is a choice.
  int64_t forced(int32_t state);
  // The state after an allowed token.
  int32_t after(int32_t state, int64_t token);

  int64_t refused() const { return refused_; }  // candidates in this text

  double forced_log_prob = 0.0;  // of a forced token, natural logarithm

 private:
  struct Node {
    int64_t token;
    int32_t parent, depth;
    int32_t child = -1, sibling = -1;  // the first child; the next child of the parent
    bool asked = false;                // whether `forced` is known
    bool end = false;                  // the token ends the text
    int64_t forced = -1;
  };
  void move(int32_t state);

  Constraint* constraint_ = nullptr;
  int64_t widest_ = 0, refused_ = 0;
  std::vector<Node> nodes_;
  std::vector<int32_t> path_;
  int32_t at_ = 0;  // where the constraint is
};

}  // namespace streamfuse
