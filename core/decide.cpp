#include "rounding.h"

#include "decide.h"

#include <algorithm>
#include <cmath>

namespace streamfuse {
namespace {

constexpr double kBudget = 1.3, kMostBudget = 6.0, kTrickle = 0.004;  // plain passes: initial, maximum, per plain pass
constexpr double kMostDebt = 0.3;                                     // plain passes that the budget may be below 0
constexpr double kStale = 0.05;      // maximum inferred change of a plain pass's cost, as a logarithm
constexpr double kLeastCost = 0.03;  // minimum extra cost of verifying, in plain passes
constexpr double kSure = 0.5;    // share of the expected hits that counts towards the budget, unless they are forced
constexpr double kPruner = 0.5;  // share of the hits beyond the kept rows that a pruner rescues
constexpr int64_t kTrials = 4;   // steps with streams in one trial
constexpr double kTrialLimit = 1.0 / 3.0;  // tokens per stream: no trial runs while a step of it costs this or more
constexpr int64_t kBackOff = 24, kMostBackOff = 768;  // tokens between trials
constexpr double kRun = 4.0;      // verify passes that share the price of the first one's streams in the fused schedule
constexpr int64_t kTextEnd = 8;   // tokens: the end of a text is not representative
constexpr double kLearn = 0.07;   // least weight of one step in `worth`: about the last 14 count
constexpr double kSlow = 0.03;    // the same in `added` and `free`, which vary more: about the last 33
constexpr double kTied = 0.5;     // share of a free draft's gain that streams have too: easy text is easy for all
constexpr double kRecent = 0.98;  // decay of the rate per step: about the last fifty count
constexpr double kGoodRatio = 0.7;  // hits over predicted hits above which cost is to blame, not the drafts

// Tokens per millisecond of the best known way of decoding.
double rate(const PlanState& state, const Facts& facts) {
  return std::max(1.0 / facts.plain_ms(), state.ms > 0.0 ? state.tokens / state.ms : 0.0);
}

double cheapest_ms(const Facts& facts) { return std::min(facts.streams_ms(), facts.carried_ms()); }

// What a step's streams must gain, in milliseconds. In the fused schedule only the first of a run of verify passes pays
// for streams: the others get theirs from the pass before, whose whole cost `worth` already contains.
double price_ms(const Facts& facts, double ms) { return facts.spec.deferred ? ms : ms / kRun; }

// Whether streams that add `gain` tokens to the next step are worth their cost in milliseconds.
bool pays(const PlanState& state, const Facts& facts, double gain, double ms) {
  if (!facts.streams_usable) return false;
  const double price = rate(state, facts) * price_ms(facts, ms);
  return gain > price || (state.trials < kTrials && price < kTrialLimit * static_cast<double>(facts.spec.num_streams));
}

// The same for a step without a free draft, in which streams add `worth`.
bool worth_it(const PlanState& state, const Facts& facts, double ms) { return pays(state, facts, state.worth, ms); }

bool affords(const PlanState& state, const Facts& facts, double ms) { return state.budget >= ms / facts.plain_ms(); }

// Whether the budget pays for streams and for a verify pass that brings nothing.
bool affords_streams(const PlanState& state, const Facts& facts, double ms) {
  const int64_t narrowest = facts.spec.carrier() + 1;  // method that takes a draft
  return affords(state, facts, ms + std::max(0.0, facts.costs.of(narrowest) - facts.plain_ms()));
}

// Whether to run a plain pass only to measure it: none has run for a long time, or its inferred cost has changed by
// more than drafting gains.
bool plain_is_stale(const PlanState& state, const Facts& facts) {
  // In the fused schedule a plain pass discards the streams, so it waits until the budget can pay for new ones.
  const bool loses_streams = !facts.spec.deferred && facts.streams_ready;
  if (facts.costs.plain_is_due() && (!loses_streams || affords_streams(state, facts, facts.carried_ms()))) return true;
  const double inferred = std::abs(facts.costs.inferred(kDecode));
  return inferred > kStale && state.tokens / state.ms * facts.plain_ms() < std::exp(inferred);
}

// The cost that streams must be worth to be bought. Streams of `verify_1` are available at every other step without
// buying, so bought ones must gain the difference (docs/runtime.md).
double least_worth_ms(const Facts& facts) {
  const double bought = facts.streams_ms();
  return std::max(bought, 2 * bought - facts.carried_ms());  // equal to `bought` without `verify_1`
}

// Number of plain passes that refill the budget by what this many steps of a trial cost if no draft is accepted.
int64_t refill(const Facts& facts, int64_t steps) {
  double ms = cheapest_ms(facts);
  if (facts.spec.deferred) ms += std::max(0.0, facts.costs.of(facts.spec.carrier() + 1) - facts.plain_ms());
  const double passes = static_cast<double>(steps) * ms / facts.plain_ms() / kTrickle;
  return std::clamp(static_cast<int64_t>(std::min(passes, 1e6)), kBackOff, kMostBackOff);
}

// Stops using streams for a while: they did not pay, or the budget cannot pay for a trial.
void back_off(PlanState& state, const char* reason) {
  state.reason = reason;
  state.trials = kTrials;
  state.worth = std::min(state.worth, 0.0);
  state.failed = state.position;
  state.retry = state.position + state.back_off;
  state.back_off = std::min(2 * state.back_off, kMostBackOff);
}

// Updates `worth`, `free` and `added` with the gain of a step with streams, and backs off if streams do not pay.
void value_streams(PlanState& state, const Facts& facts, double gain, const Outcome& outcome) {
  const double share = 1.0 / static_cast<double>(++state.trials);
  state.worth += std::max(kLearn, share) * (gain - state.worth);
  const double free = outcome.free_gain.value_or(state.free);
  state.free += std::max(kSlow, share) * (free - state.free);
  state.added += std::max(kSlow, share) * (gain - free - state.added);
  if (state.trials < kTrials) return;
  if (state.worth > rate(state, facts) * price_ms(facts, cheapest_ms(facts)))
    state.back_off = kBackOff;
  else if (state.position >= state.retry)
    back_off(state, outcome.streams_ratio > kGoodRatio ? kVerifyingCosts : kRejected);
}

}  // namespace

PlanState::PlanState() : budget(kBudget), back_off(kBackOff) {}

double Facts::streams_ms() const { return spec.deferred ? costs.of(kStreams) : carried_ms(); }

double Facts::carried_ms() const {
  const int64_t carrier = spec.deferred ? spec.carrier() : 0;
  return carrier < 0 ? costs.of(kStreams) : std::max(0.0, costs.of(carrier) - plain_ms());
}

Choice best_choice(const PlanState& state, const Facts& facts, const Tree& tree, std::span<const double> hits) {
  const double now = rate(state, facts);
  // In the fused schedule a verify pass also yields streams, which would have to be bought after a plain pass.
  const double left = facts.spec.deferred                          ? 0.0
                      : worth_it(state, facts, facts.streams_ms()) ? now * facts.streams_ms()
                                                                   : 0.0;
  Choice found;
  for (size_t m = 0; m < facts.spec.verify.size(); ++m) {
    const int64_t method = static_cast<int64_t>(m), keep = facts.spec.verify[m].keep;
    const double least = now * facts.costs.per_node(method);
    // The expected hits of this row if the method keeps `keep` of its rows: a later row survives only by replacing a
    // more probable one. The pruner is trained on streams, so it improves on their order, but not on free drafts.
    const auto worth = [&](int64_t row) {
      const double likely = std::min(1.0, hits[static_cast<size_t>(row)]);
      const Tree::Node& node = tree[row];
      return row < keep ? likely : node.source == SF_STREAMS && node.depth < keep ? kPruner * likely : 0.0;
    };
    int64_t nodes = std::min(tree.size(), facts.spec.verify[m].rows);
    while (nodes > 1 && worth(nodes - 1) < least) --nodes;
    double expected = 0.0, sure = 0.0;
    for (int64_t row = 1; row < nodes; ++row) {
      expected += worth(row);
      sure += (tree[row].forced ? 1.0 : kSure) * worth(row);
    }
    const double extra = std::max(facts.costs.of(method, nodes) - facts.plain_ms(), kLeastCost * facts.plain_ms());
    const double gain = left - now * extra + expected;
    if (nodes > 1 && gain > found.gain) found = {method, nodes, gain, sure};
    if (nodes == tree.size() && nodes <= keep) break;  // the whole tree: wider methods have nothing to add
  }
  return found;
}

double gained(const PlanState& state, const Facts& facts, const Choice& choice, const Tree& tree,
              std::span<const int64_t> chosen) {
  if (choice.method == kDecode) return 0.0;
  const int64_t kept = std::min(choice.nodes, facts.spec.verify[static_cast<size_t>(choice.method)].keep);
  double tokens = 0.0;
  int64_t row = 0;
  for (const int64_t token : chosen) {
    row = tree.child(row, token);
    if (row == 0 || row >= kept) break;
    ++tokens;
  }
  return tokens - rate(state, facts) * (facts.costs.of(choice.method, choice.nodes) - facts.plain_ms());
}

Step decide(const PlanState& state, const Facts& facts, const Tree& tree, std::span<const double> hits) {
  if (plain_is_stale(state, facts)) return {kDecode, 1, nullptr, true};
  const Choice choice = best_choice(state, facts, tree, hits);
  if (choice.method != kDecode) {
    const double extra = facts.costs.of(choice.method, choice.nodes) - facts.plain_ms();
    if (affords(state, facts, extra - choice.sure * facts.plain_ms())) return {choice.method, choice.nodes, nullptr};
  }
  const double carried = facts.carried_ms();
  if (worth_it(state, facts, carried) && affords_streams(state, facts, carried)) {
    if (facts.spec.carrier() >= 0) return {facts.spec.carrier(), 1, nullptr};
    if (!facts.spec.deferred && !facts.streams_ready) return {0, 1, nullptr};
    return {};
  }
  return {kDecode, 1, facts.spec.num_streams == 0 && tree.size() == 1 ? kNothingToDraft : state.reason};
}

void begin_text(PlanState& state, const Facts& facts) {
  // The previous text says little about this one: wait only until plain passes have paid for one step of a trial.
  const int64_t wait = facts.costs.known() && facts.streams_usable ? refill(facts, 1) : kBackOff;
  state.back_off = std::min(state.back_off, wait);
  state.retry = std::min(state.retry, state.position + wait);
}

bool record(PlanState& state, const Facts& facts, const Outcome& outcome) {
  const double cost = facts.costs.of(outcome.step.method, outcome.step.nodes);
  const double brought = static_cast<double>(outcome.tokens), gained = brought - cost / facts.plain_ms();
  state.budget =
      std::clamp(state.budget + (outcome.step.method == kDecode ? kTrickle : gained), -kMostDebt, kMostBudget);
  state.tokens = kRecent * state.tokens + brought;
  state.ms = kRecent * state.ms + cost;
  state.position += outcome.tokens;
  if (outcome.from_streams && !outcome.step.measures && outcome.room >= kTextEnd) {
    // The extra cost of `verify_1` belongs to the streams of the next step, not to this step.
    const bool carries = outcome.step.method >= 0 && outcome.step.method == facts.spec.carrier();
    const double extra = cost - (carries ? facts.carried_ms() : 0.0) - facts.plain_ms();
    value_streams(state, facts, brought - 1 - rate(state, facts) * extra, outcome);
  }
  if (!facts.streams_usable) return false;
  const double cheapest = cheapest_ms(facts);
  state.retry = std::min(state.retry, state.failed + refill(facts, kTrials));  // the budget has recovered by then
  // A trial that stopped because its price rose above the limit resumes when the price falls; it does not start over.
  const bool anew = state.trials >= kTrials && !worth_it(state, facts, cheapest) && state.position >= state.retry;
  if (anew) state.trials = 0;
  if (worth_it(state, facts, cheapest) && !affords_streams(state, facts, cheapest) && !facts.streams_ready) {
    back_off(state, kVerifyingCosts);
    return false;
  }
  return anew;
}

void record_streams(PlanState& state, const Facts& facts) {
  const double spent = facts.costs.of(kStreams);
  state.budget -= spent / facts.plain_ms();
  state.ms += spent;
}

bool may_buy(const PlanState& state, const Facts& facts, int64_t room) {
  if (!facts.streams_usable || !facts.spec.deferred || facts.streams_ready || room < 2) return false;
  const bool carries = facts.spec.carrier() >= 0 && worth_it(state, facts, facts.carried_ms());
  if (carries && state.trials < kTrials) return false;  // `verify_1` runs the trial
  if (plain_is_stale(state, facts)) return false;       // the next pass would not use them
  return buys_over(state, facts, 0.0) && affords_streams(state, facts, facts.streams_ms());
}

bool buys_over(const PlanState& state, const Facts& facts, double free_gain) {
  const double added = free_gain > 0.0 ? state.added - (1.0 - kTied) * (free_gain - state.free) : state.worth;
  return pays(state, facts, added, least_worth_ms(facts));
}

}  // namespace streamfuse
