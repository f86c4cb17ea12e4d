// Drafts, decides and learns, pass by pass: what joins the sources of drafts (draft.h) with the decision (decide.h).
#pragma once

#include <span>
#include <string>
#include <vector>

#include "decide.h"
#include "draft.h"

namespace streamfuse {

// Milliseconds of a step: finding its tree, and the pass itself.
struct StepTime {
  double draft, pass;
};

class Planner {
 public:
  Planner(const Model& model, Costs& costs);

  // A text begins with these tokens, of which the first `kept` are as they were: nothing is known of its last pass.
  void begin(const std::vector<int64_t>& tokens, int64_t kept);
  // The next pass after `tokens`, of which at most `room` more are wanted. `width` above 0 drafts at one width always;
  // 1 is plain decoding. The tree is `tree()`, its first `nodes` rows.
  Step next(const std::vector<int64_t>& tokens, int64_t room, int64_t width);
  const Tree& tree() const { return draft_.tree; }
  // What came of it: the tokens chosen, the streams of the last accepted node, milliseconds. True: ask for deferred
  // streams now. `tokens` and `room` are as they are after the pass.
  bool learn(const Step& step, std::span<const int64_t> chosen, const Streams& streams, StepTime took,
             const std::vector<int64_t>& tokens, int64_t room, int64_t width);
  void learn_streams(const Streams& streams, double ms, int64_t width);
  // The engine's streams cannot be used.
  void fail_streams(const std::string& why) { drafter_.fail_streams(why); }
  bool streams_failed() const { return drafter_.streams_failed(); }

 private:
  Facts facts() const;
  Step next_at_width(const std::vector<int64_t>& tokens, int64_t room, int64_t width);

  const Spec& spec_;
  Costs& costs_;
  Drafter drafter_;
  PlanState state_;
  Draft draft_, ahead_;  // of this step; of the next one, where it was drafted before streams were bought
  bool drafted_ahead_ = false;
  std::vector<double> hits_;
};

}  // namespace streamfuse
