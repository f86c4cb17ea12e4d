// The constraint along the paths of a draft: what may follow each drafted token, and what must.
//
// A draft visits the constraint's states as a prefix tree, which all sources of drafts share. The constraint itself has
// one state, so the guide moves it from node to node: it rolls back to the common ancestor and accepts the rest.
// Without a constraint everything may follow, and nothing must. A draft ends where the constraint fails, and does not
// fail: the model may go elsewhere, and if it goes there, its choice fails.
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
  // The token that probably follows this state where only one text can follow; -1: there is a choice.
  int64_t forced(int32_t state);
  // The model chose this token after a state of the last draft. Where only one text could follow, but in other tokens
  // than the constraint's, the next drafts use the model's.
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
    bool asked = false;                // whether `spelled` and `forced` are known
    bool end = false;                  // the token ends the text
    int64_t spelled = -1;              // the forced text's first token by the constraint; -1: there is a choice
    int64_t forced = -1;               // by the model's habit
  };
  void move(int32_t state);
  void ask_forced(int32_t state);

  Constraint* constraint_ = nullptr;
  int64_t widest_ = 0, refused_ = 0;
  std::vector<Node> nodes_;
  std::vector<int32_t> path_;
  std::unordered_map<int64_t, int64_t> habits_;  // the model's token for the constraint's, where they differ
  int32_t at_ = 0;                               // where the constraint is
};

}  // namespace streamfuse
