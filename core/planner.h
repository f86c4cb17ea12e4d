// Connects the sources of drafts (draft.h) with the decisions (decide.h), and updates both after each pass.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "decide.h"
#include "draft.h"

namespace streamfuse {

// Milliseconds of a step: building its tree, and the pass itself.
struct StepTime {
  double draft, pass;
};

class Planner {
 public:
  Planner(const Model& model, Costs& costs);

  // A text begins with these tokens; the first `kept` are the same as before. Forgets the results of the last pass.
  void begin(const std::vector<int64_t>& tokens, int64_t kept);
  // The next pass after `tokens`, if at most `room` more tokens are wanted. A `width` above 0 is a fixed width; 1 is
  // plain decoding. The pass takes the first `nodes` rows of `tree()`.
  Step next(const std::vector<int64_t>& tokens, int64_t room, int64_t width);
  const Tree& tree() const { return draft_.tree; }
  // The results of that pass: the tokens chosen, the streams of the last accepted node, milliseconds. `tokens` and
  // `room` are those after the pass. Returns true if the caller should run a pass of deferred streams now.
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
  Draft draft_, ahead_;  // of this step; of the next one, if it was drafted to decide whether to buy streams
  bool drafted_ahead_ = false;
  std::vector<double> hits_;
};

}  // namespace streamfuse
