// The constraint along the paths of a draft: which tokens may follow each drafted token, and which are likely.
//
// A draft visits the constraint's states as a prefix tree, which all sources of drafts share. The constraint itself has
// one state, so the guide moves it from node to node: it rolls back to the common ancestor and accepts the rest.
// Without a constraint every token may follow, and the guide offers none. An error of the constraint cuts the draft at
// that node and is not raised: it matters only if the model chooses that token, and then the acceptor raises it.
//
// The guide also records what the model chose: how it splits forced text into tokens, and which tokens it chose in
// states with few continuations, such as before a key of an object. It offers these tokens in later drafts.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "constraint.h"

namespace streamfuse {

class Guide {
 public:
  static constexpr size_t kOffers = 3;

  struct Offer {
    int64_t token;
    double log_prob;  // natural logarithm, at most 0: a child is never more probable than its parent
  };
  // Likely next tokens, the most probable first.
  struct Offers {
    std::array<Offer, kOffers> list;
    size_t count = 0;

    const Offer* begin() const { return list.data(); }
    const Offer* end() const { return list.data() + count; }
    const Offer& operator[](int64_t place) const { return list[static_cast<size_t>(place)]; }
  };

  Guide();

  // The constraint of the next text; null: none. It must outlive the text.
  void begin(Constraint* constraint);
  // A draft of at most `widest` nodes begins at state 0, after `root`, the last token of the text.
  void begin_draft(int64_t root, int64_t widest);
  // Puts the constraint back to where the draft began.
  void end_draft() { move(0); }

  // allowed [tokens]: 1 if the token may follow this state. Counts those that may not.
  void allows(int32_t state, std::span<const int64_t> tokens, uint8_t* allowed);
  bool allows(int32_t state, int64_t token);
  // Whether only one text can follow this state.
  bool forces(int32_t state);
  // If the text is forced, its first token as the constraint splits it, and those with which the model began it before.
  // If the state has few continuations, the tokens that the model chose in states with the same key. Otherwise empty.
  // The constraint allows all of them.
  Offers offers(int32_t state);
  // The model chose this token after a state of the last draft.
  void learn(int32_t state, int64_t chosen);
  // The state after an allowed token.
  int32_t after(int32_t state, int64_t token);

  // Drops what was learned.
  void forget();

  int64_t refused() const { return refused_; }  // candidates in this text

 private:
  struct Node {
    int64_t token;
    int32_t parent, depth;
    int32_t child = -1, sibling = -1;  // the first child; the next child of the parent
    bool end = false;                  // the token ends the text
    bool asked = false;                // whether `canonical` and `key` are known
    bool has_offers = false;           // whether `offers` is known
    int64_t canonical = -1;            // first token of the forced text, as the constraint splits it; -1: a choice
    uint64_t key = 0;                  // of `habits_`; 0: none
    Offers offers{};
  };
  // What the model chose in states with the same key, or with the same key and the same previous token. Older choices
  // weigh less.
  struct Habit {
    struct Choice {
      int64_t token = -1;
      double weight = 0.0;
    };
    double total = 0.0;
    std::array<Choice, kOffers + 1> choices;  // those with the largest weights, unordered

    void add(int64_t token);
  };
  Node& node(int32_t state) { return nodes_[static_cast<size_t>(state)]; }
  void move(int32_t state);
  void ask(int32_t state);
  Offers find_offers(int32_t state);
  uint64_t key_after_token(int32_t state);
  void may_follow(int32_t state, std::span<const int64_t> tokens, uint8_t* allowed);

  Constraint* constraint_ = nullptr;
  int64_t root_ = -1, widest_ = 0, refused_ = 0;
  std::vector<Node> nodes_;
  std::vector<int32_t> path_;
  std::unordered_map<uint64_t, Habit> habits_;
  // Of keys seen for the first time: how often the model chose `canonical`.
  double canonical_hits_ = 0.0, canonical_trials_ = 0.0;
  int32_t at_ = 0;  // the constraint's state
};

}  // namespace streamfuse
