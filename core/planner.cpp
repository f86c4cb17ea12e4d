#include "rounding.h"

#include "planner.h"

#include <optional>
#include <utility>

namespace streamfuse {

Planner::Planner(const Model& model, Costs& costs, std::shared_ptr<const Memory> memory)
    : spec_(model.spec), costs_(costs), drafter_(model, std::move(memory)) {
  const size_t most = 2 * static_cast<size_t>(spec_.widest());  // nodes of two merged drafts, before the cut
  draft_.reserve(most);
  ahead_.reserve(most);
  hits_.reserve(most);
}

Facts Planner::facts() const { return {spec_, costs_, drafter_.streams_usable(), drafter_.streams_ready()}; }

void Planner::begin(const std::vector<int64_t>& tokens, int64_t kept, Constraint* constraint,
                    const Generation& generation) {
  free_.reset();
  costs_.begin_text();
  drafter_.begin(tokens, kept, constraint, generation);
  begin_text(state_, facts());
}

Step Planner::next(const std::vector<int64_t>& tokens, int64_t room, int64_t width) {
  if (width > 0) return next_at_width(tokens, room, width);
  if (free_ && !drafter_.streams_ready()) {
    std::swap(draft_, ahead_);
    free_.reset();
  } else if (room < 2) {  // no room for a drafted token
    drafter_.draft_nothing(tokens, draft_);
    return {};
  } else {
    drafter_.draft(tokens, room - 1, draft_);
  }
  drafter_.expect(draft_, hits_);
  Step step = decide(state_, facts(), draft_.tree, hits_);
  if (step.reason != nullptr && drafter_.damage() != nullptr) step.reason = drafter_.damage();
  return step;
}

Step Planner::next_at_width(const std::vector<int64_t>& tokens, int64_t room, int64_t width) {
  draft_.set_root(tokens.back());
  if (width < 2 || room < 2) return {};
  if (!drafter_.draft_at_width(tokens, width, room - 1, draft_.tree)) return {kDecode, 1, drafter_.damage()};
  int64_t method = 0;
  while (spec_.verify[static_cast<size_t>(method)].rows < draft_.tree.size()) ++method;
  return {method, draft_.tree.size(), nullptr};
}

void Planner::learn(const Step& step, std::span<const int64_t> chosen, const Streams& streams, StepTime time,
                    int64_t room, int64_t width) {
  drafter_.take(streams);
  if (width > 0) return;
  costs_.observe(step.method, step.nodes, time.draft + time.pass);
  drafter_.learn(draft_, chosen);
  std::optional<double> free_gain;
  if (free_) free_gain = gained(state_, facts(), *free_, ahead_.tree, chosen);
  free_.reset();
  const Outcome outcome = {
      step, static_cast<int64_t>(chosen.size()), draft_.from_streams, drafter_.streams_ratio(), room, free_gain};
  if (record(state_, facts(), outcome)) drafter_.forget_streams();
}

bool Planner::buys_streams(const std::vector<int64_t>& tokens, int64_t room, int64_t width) {
  if (width > 0) return width > 1 && spec_.deferred && !drafter_.streams_ready() && drafter_.streams_usable();
  if (!may_buy(state_, facts(), room)) return false;
  drafter_.draft(tokens, room - 1, ahead_);
  drafter_.expect(ahead_, hits_);
  free_ = best_choice(state_, facts(), ahead_.tree, hits_);
  return buys_over(state_, facts(), free_->gain);
}

void Planner::learn_streams(const Streams& streams, double ms, int64_t width) {
  drafter_.take(streams);
  if (width > 0) return;
  costs_.observe(kStreams, 1, ms);
  record_streams(state_, facts());
}

}  // namespace streamfuse
