// Decides which pass comes next and whether streams are worth their cost, from the planner's state and measured costs.
//
// A step is a pass of the model: plain (`decode`), or the verification of a drafted tree. Drafts are free (look-up,
// n-gram table) or come from streams. Streams cost a pass of their own (deferred schedule), or a verify pass instead of
// a plain one (fused schedule; `verify_1` in both). Gains and costs are in tokens: a millisecond costs `rate` tokens,
// the number that the fastest known way of decoding produces in it.
//   1. Cut the tree at the first row whose expected tokens are worth less than its cost. Verify the tree if its
//      expected tokens exceed rate * (its cost - cost of a plain pass). The expected tokens are the sum of the path
//      probabilities, corrected per depth by the observed hit rate.
//   2. Buy streams if worth > rate * cost; `worth` is the average gain of a step with streams. If the free draft is
//      worth a pass, also require added - (its expected gain - free) / 2 > rate * cost; `added` is the average gain of
//      streams beyond the free draft, and `free` the average gain of free drafts. In the fused schedule only a quarter
//      of the cost counts, because later verify passes yield streams too. With `verify_1`, a plain pass computes
//      streams if worth > rate * its extra cost, and other streams are bought only if that gains more than waiting for
//      the next plain pass.
//   3. If streams do not pay, back off: buy none for a while, twice as long each time, or until the budget is refilled,
//      then run another trial of a few steps, unless their streams cost a third of a token or more for each stream.
//   4. The budget plus half of a draft's expected tokens, and all of those that a constraint forces, must pay for its
//      pass. Gains fill the budget, and so does each plain pass by a little. The budget bounds the cost of wrong
//      predictions.
//   5. A plain pass runs now and then only to measure its latency, the unit of all other costs.
// Decisions change speed only, never the output. docs/runtime.md explains the rules; tools/plan_simulation.py shows
// their effect on simulated devices and texts.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "costs.h"
#include "tree.h"

namespace streamfuse {

inline constexpr char kVerifyingCosts[] = "verifying costs more here than drafts bring";
inline constexpr char kRejected[] = "too few drafts were accepted";
inline constexpr char kNothingToDraft[] = "nothing to draft from in the text";  // for a bundle without streams

// State that is kept from pass to pass.
struct PlanState {
  double budget;                  // cost that drafting may still lose, in plain passes
  double tokens = 0.0, ms = 0.0;  // decaying sums over recent steps
  double worth = 0.0;             // average gain of a step with streams over a plain pass, in tokens
  double free = 0.0;              // average of what the free drafts of steps with bought streams would have gained
  double added = 0.0;    // average of what a step with streams gained beyond its free draft (beyond `free` if unknown)
  int64_t trials = 0;    // steps with streams since the last trial began
  int64_t position = 0;  // tokens chosen so far
  int64_t failed = 0;    // position at which the last trial failed
  int64_t retry = 0;     // position at which the next trial of streams begins
  int64_t back_off;      // tokens to wait if that trial fails too
  const char* reason = kVerifyingCosts;  // why passes are plain, unless the step has its own reason

  PlanState();
};

// Inputs of a decision.
struct Facts {
  const Spec& spec;
  const Costs& costs;
  bool streams_usable;  // the bundle has streams, and they have not failed
  bool streams_ready;   // the streams of the last accepted node are computed

  double plain_ms() const { return costs.of(kDecode); }
  // Milliseconds that computing streams for the next step adds, in a pass of their own or as part of a verify pass.
  double streams_ms() const;
  // Milliseconds that streams add to a plain pass (`verify_1`); `streams_ms` if the bundle has no `verify_1`.
  double carried_ms() const;
};

struct Step {
  int64_t method = kDecode;
  int64_t nodes = 1;
  const char* reason = nullptr;  // why this pass is plain; null if it is not a fallback
  bool measures = false;         // a plain pass that runs only to measure its latency; the draft is not verified
};

// The method and number of rows with the highest expected gain; `decode` if there is no gain.
struct Choice {
  int64_t method = kDecode, nodes = 1;
  double gain = 0.0;  // over a plain pass, in tokens
  double sure = 0.0;  // expected number of accepted tokens that the budget may count on
};

// Tokens that verifying this choice would have gained over a plain pass, given the tokens that the model chose after
// the root. A lower bound: the tree may continue beyond the last chosen token.
double gained(const PlanState&, const Facts&, const Choice&, const Tree& tree, std::span<const int64_t> chosen);

// `hits` [nodes of the tree]: expected number of accepted tokens from each node.
Choice best_choice(const PlanState&, const Facts&, const Tree& tree, std::span<const double> hits);
Step decide(const PlanState&, const Facts&, const Tree& tree, std::span<const double> hits);

// The result of a step.
struct Outcome {
  Step step;
  int64_t tokens;                   // accepted tokens, including the bonus token
  bool from_streams;                // whether its draft had streams to grow from
  double streams_ratio;             // observed hits of streams / predicted hits
  int64_t room;                     // tokens left to generate
  std::optional<double> free_gain;  // what the free draft would have gained, if this step's streams were bought
};

// To be called when a generation begins; shortens the back-off.
void begin_text(PlanState&, const Facts&);
// Returns true if a new trial of streams begins; earlier observations of streams should then count less.
bool record(PlanState&, const Facts&, const Outcome&);
void record_streams(PlanState&, const Facts&);

// Whether streams would be bought for the next step if it had no free draft. If true, draft that step and call
// `buys_over` with the gain of the draft.
bool may_buy(const PlanState&, const Facts&, int64_t room);
bool buys_over(const PlanState&, const Facts&, double free_gain);

}  // namespace streamfuse
