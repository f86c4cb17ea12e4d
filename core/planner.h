// Connects the sources of drafts (draft.h) with the decisions (decide.h), and updates both after each pass.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "decide.h"
#include "draft.h"

namespace streamfuse {

// Time of a step in milliseconds: drafting its tree, and the pass itself.
struct StepTime {
  double draft, pass;
};

class Planner {
 public:
  Planner(const Model& model, Costs& costs, std::shared_ptr<const Memory> memory);

  // Starts a text with these tokens, of which the first `kept` are unchanged (see Drafter). Discards the results of the
  // last pass.
  void begin(const std::vector<int64_t>& tokens, int64_t kept, Constraint* constraint, const Generation& generation);
  // The next pass after `tokens`, with at most `room` tokens left to generate. A `width` above 0 fixes the width; 1 is
  // plain decoding. The pass runs the first `nodes` rows of `tree()`.
  Step next(const std::vector<int64_t>& tokens, int64_t room, int64_t width);
  const Tree& tree() const { return draft_.tree; }
  // Updates the planner with the results of that pass: the chosen tokens, the streams of the last accepted node, the
  // step's time, and the room after it.
  void learn(const Step& step, std::span<const int64_t> chosen, const Streams& streams, StepTime time, int64_t room,
             int64_t width);
  // Whether the caller should run `streams` now; call it after `learn`, unless the text has ended. To decide, it drafts
  // the next step without streams.
  bool buys_streams(const std::vector<int64_t>& tokens, int64_t room, int64_t width);
  void learn_streams(const Streams& streams, double ms, int64_t width);
  // Stops drafting from streams, which the engine cannot compute.
  void fail_streams(const std::string& why) { drafter_.fail_streams(why); }
  // Drops what the model chose under constraints; what was measured stays.
  void forget_choices() { drafter_.forget_choices(); }
  int64_t refused() const { return drafter_.refused(); }

 private:
  Facts facts() const;
  Step next_at_width(const std::vector<int64_t>& tokens, int64_t room, int64_t width);

  const Spec& spec_;
  Costs& costs_;
  Drafter drafter_;
  PlanState state_;
  Draft draft_;  // of this step
  Draft ahead_;  // of the next step without streams, drafted to decide on buying them
  // The best pass over `ahead_`; none if nothing is drafted ahead. If streams are bought, kept until `learn`.
  std::optional<Choice> free_;
  std::vector<double> hits_;
};

}  // namespace streamfuse
