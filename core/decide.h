// Which pass comes next, and whether streams are worth their cost: functions of what is remembered and what is known.
//
// A step is a pass of the model: plain (`decode`), or the verification of a drafted tree. Drafts are free (look-up,
// n-gram table) or come from streams. Streams cost a pass of their own (deferred schedule), or a verify pass instead of
// a plain one (fused schedule; `verify_1` in both). The unit is tokens: a millisecond is worth `rate` tokens, what the
// best known way of decoding makes of it.
//   1. Cut a tree where one more row earns less than it costs. Verify it if its expected tokens exceed
//      rate * (its cost - a plain pass's). Expected are the probabilities of its paths, corrected per depth by how
//      often such predictions came true.
//   2. Buy streams if worth - gain of the free draft > rate * cost; worth is what steps with streams gain on average.
//      With `verify_1`, a plain pass carries streams if worth > rate * what that adds to it, and others are bought
//      only if that brings more than to wait for the next plain pass.
//   3. Where they do not pay, back off: none for a while, twice as long each time, then a trial of a few steps.
//   4. A budget, and half of what a draft is expected to bring, must pay for its pass. Gains earn it, and a trickle
//      from plain passes. So it bounds what a wrong expectation may cost.
// A decision changes speed and nothing else. docs/runtime.md explains; tools/plan_simulation.py shows what it gains on
// simulated devices and texts.
#pragma once

#include <cstdint>
#include <span>

#include "costs.h"
#include "tree.h"

namespace streamfuse {

inline constexpr char kVerifyingCosts[] = "verifying costs more here than drafts bring";
inline constexpr char kRejected[] = "too few drafts were accepted";
inline constexpr char kNothingToDraft[] = "nothing to draft from in the text";  // of a bundle without streams

// What is remembered of the passes so far.
struct PlanState {
  double budget;                         // plain passes that may be lost
  double tokens = 0.0, ms = 0.0;         // of recent steps
  double worth = 0.0;                    // what a step with streams gains over a plain pass, in tokens
  int64_t trials = 0;                    // steps with streams since they were last tried anew
  int64_t position = 0;                  // tokens chosen so far
  int64_t retry = 0;                     // position at which streams that did not pay are tried again ...
  int64_t back_off;                      // ... and after how many tokens the next time
  const char* reason = kVerifyingCosts;  // why plain passes are plain, unless something else is known

  PlanState();
};

// What is known when a decision is made.
struct Facts {
  const Spec& spec;
  const Costs& costs;
  bool streams_usable;  // the bundle has streams, and they did not fail
  bool streams_ready;   // those of the last accepted node are at hand

  double plain_ms() const { return costs.of(kDecode); }
  // Milliseconds that streams of the next step add: by a pass of their own, or as part of a verify pass.
  double streams_ms() const;
  // The same carried by a plain pass (`verify_1`); `streams_ms` where no method does that.
  double carried_ms() const;
};

struct Step {
  int64_t method = kDecode;
  int64_t nodes = 1;
  const char* reason = nullptr;  // why a plain pass is plain; NULL where it is no fall-back
};

// The method and the rows of a draft that gain most; `decode` where nothing gains.
struct Choice {
  int64_t method = kDecode, nodes = 1;
  double gain = 0.0;  // over a plain pass, in tokens
  double hits = 0.0;  // expected
};

// `hits` [nodes of the tree]: accepted tokens that each is expected to bring.
Choice best_choice(const PlanState&, const Facts&, const Tree& tree, std::span<const double> hits);
Step decide(const PlanState&, const Facts&, const Tree& tree, std::span<const double> hits);

// What a step was, and what it brought.
struct Outcome {
  Step step;
  int64_t tokens;        // chosen
  bool from_streams;     // its draft had streams
  double streams_ratio;  // of their predictions that came true
  int64_t room;          // tokens that may still follow
};

void begin_text(PlanState&);
// True: streams are tried anew, so what was seen of them counts less.
bool record(PlanState&, const Facts&, const Outcome&);
void record_streams(PlanState&, const Facts&);

// Whether streams are bought for the next step if the free draft brings nothing. False is final; true asks for the
// draft and `buys_over` its gain, which costs time to find.
bool may_buy(const PlanState&, const Facts&, int64_t room);
bool buys_over(const PlanState&, const Facts&, double free_gain);

}  // namespace streamfuse
