#include "rounding.h"

#include "plan.h"

#include <algorithm>
#include <cmath>
#include <exception>

#include "numbers.h"

namespace streamfuse {
namespace {

constexpr const char* kCosts = "verifying costs more here than drafts bring";
constexpr const char* kRejected = "too few drafts were accepted";
constexpr const char* kNothing = "nothing to draft from in the text";  // of a bundle without streams

constexpr double kForgetSteps = 0.96;  // of what was seen of a source, per step: about the last 25 count
constexpr double kPriorWeight =
    3.0;  // predicted hits that the bundle's own calibration counts for, and all after a doubt
constexpr double kBudget = 1.3, kMostBudget = 6.0, kTrickle = 0.004;  // plain passes: at first, at most, per plain pass
constexpr double kMostDebt = 0.3;    // plain passes below 0 that the budget remembers
constexpr double kStale = 0.05;      // logarithm of how far the cost of a plain pass may be inferred
constexpr double kLeastCost = 0.03;  // plain passes that verifying costs beside a plain one, whatever was measured
constexpr double kSure = 0.5;        // share of the expected hits that counts too
constexpr double kPruner = 0.5;      // of what keeping a draft's best rows loses, the share that a pruner saves
constexpr int64_t kTries = 4;        // steps with streams in one trial
constexpr int64_t kBackOff = 24, kMostBackOff = 768;  // tokens between trials
constexpr int64_t kNewText = 64;  // until streams are tried in a new text, at most: shorter texts cannot pay for a trial
constexpr double kLearn = 0.07;   // how much one step teaches about what streams are worth: about the last ten count
constexpr double kRecent = 0.98;  // likewise of the rate: the last fifty

}  // namespace

Calibration::Calibration(std::span<const double> priors, int64_t depths) {
  for (int64_t d = 0; d < depths; ++d) {
    const double prior = static_cast<size_t>(d) < priors.size() ? priors[static_cast<size_t>(d)] : 1.0;
    seen_.push_back({kPriorWeight * prior, kPriorWeight});
  }
  update();
}

void Calibration::learn(const Tree& tree, std::span<const int64_t> chosen) {
  int64_t row = 0;
  for (size_t d = 0; d < std::min(chosen.size(), seen_.size()); ++d) {
    double predicted = 0.0;
    for (int64_t other = row + 1; other < tree.size(); ++other)
      if (tree[other].parent == row) predicted += exponential(tree[other].log_prob - tree[row].log_prob);
    if (predicted <= 0.0) break;
    row = tree.child(row, chosen[d]);
    seen_[d].hits = kForgetSteps * seen_[d].hits + (row > 0);
    seen_[d].predicted = kForgetSteps * seen_[d].predicted + std::min(predicted, 1.0);
    if (row == 0) break;
  }
  update();
}

void Calibration::doubt() {
  for (Seen& seen : seen_) {
    const double factor = std::min(1.0, kPriorWeight / seen.predicted);
    seen.hits *= factor, seen.predicted *= factor;
  }
}

void Calibration::update() {
  ratios_.assign(1, 1.0);
  for (const Seen& seen : seen_) ratios_.push_back(ratios_.back() * (seen.hits / seen.predicted));
}

Plan::Plan(const Model& model, Costs& costs)
    : model_(model),
      costs_(costs),
      from_streams_(model),
      from_table_(model),
      look_up_(model.spec.capacity, model.spec.widest()),
      of_streams_(model.tables.calibration, model.spec.num_streams),
      of_table_({}, kTableDepth),
      budget_(kBudget),
      back_off_(kBackOff),
      reason_(kCosts) {
  const size_t widest = 2 * static_cast<size_t>(model.spec.widest());  // of two drafts before they are cut
  for (Tree* tree : {&draft_.tree, &draft_.streams, &draft_.table, &next_.tree, &next_.streams, &next_.table})
    tree->nodes.reserve(widest);
  hits_.reserve(widest);
  ids_.resize(static_cast<size_t>(model.spec.num_streams * model.spec.top_k));
  log_probs_.resize(ids_.size());
}

void Plan::begin(const std::vector<int64_t>& tokens, int64_t kept) {
  streams_ready_ = looked_ = false;
  look_up_.follow(tokens, kept);
  // What the text before was like says little of this one, so streams are tried soon, if the budget can pay.
  back_off_ = std::min(back_off_, kNewText);
  retry_ = std::min(retry_, position_ + kNewText);
}

double Plan::rate() const { return std::max(1.0 / plain_ms(), ms_ > 0.0 ? tokens_ / ms_ : 0.0); }

// Whether a plain pass should be measured: its cost was inferred from other passes, by more than what drafting gains.
bool Plan::plain_is_stale() const {
  const double inferred = std::abs(costs_.inferred(kDecode));
  return inferred > kStale && tokens_ / ms_ * plain_ms() < std::exp(inferred);
}

double Plan::price() const { return model_.spec.deferred ? costs_.of(kStreams) : ride_price(); }

double Plan::ride_price() const {
  const int64_t rider = model_.spec.deferred ? model_.spec.rider() : 0;
  return rider < 0 ? price() : std::max(0.0, costs_.of(rider) - plain_ms());
}

void Plan::draft(const std::vector<int64_t>& tokens, int64_t depth, Draft& out) {
  const int64_t widest = model_.spec.widest();
  grow_streams(tokens.back(), widest, depth, out.streams);
  out.of_streams = streams_ready_;
  out.table.set_root(tokens.back());
  attempt(table_failed_, out.table, [&] { from_table_.grow(tokens, widest, depth, out.table); });
  out.tree.nodes = out.streams.nodes;
  joiner_.join(out.table, widest, out.tree);
  out.looked_up = false;
  attempt(look_up_failed_, out.tree, [&] { out.looked_up = look_up_.join(tokens, widest, depth, out.tree); });
}

// A root alone where there are no streams, or they fail.
void Plan::grow_streams(int64_t root, int64_t width, int64_t depth, Tree& out) {
  out.set_root(root);
  if (!streams_ready_) return;
  attempt(streams_failed_, out, [&] { from_streams_.grow(root, ids_.data(), log_probs_.data(), width, depth, out); });
  streams_ready_ = !streams_failed_;
}

// Runs one source of drafts. Where it fails, `tree` is the root alone.
template <typename Grow>
void Plan::attempt(bool& failed, Tree& tree, const Grow& grow) {
  if (failed) return;
  try {
    grow();
  } catch (const std::exception& error) {
    fail(failed, error.what());
    tree.nodes.resize(1);
  }
}

void Plan::fail(bool& failed, const std::string& why) {
  failed = true;
  if (damage_.empty()) damage_ = "drafts are damaged: " + why;
}

Plan::Choice Plan::best(const Draft& draft) {
  const double now = rate();
  // With the fused schedule a verify pass leaves streams behind, which a plain one would have to be followed by buying.
  const double left = model_.spec.deferred ? 0.0 : wanted(0.0, price()) ? now * price() : 0.0;
  hits_.clear();
  for (const Tree::Node& node : draft.tree.nodes) {
    const Calibration& calibration = node.source == SF_TABLE ? of_table_ : of_streams_;
    hits_.push_back(exponential(node.log_prob) * (node.exact ? 1.0 : calibration.ratio(node.depth)));
  }
  Choice found;
  for (size_t m = 0; m < model_.spec.verify.size(); ++m) {
    const int64_t method = static_cast<int64_t>(m), keep = model_.spec.verify[m].keep;
    const double least = now * costs_.per_node(method);
    // What this row may bring where the method keeps `keep` of its rows: one that is kept takes a likelier one's place.
    // A pruner knows streams' nodes better than their order says; of free drafts it knows no more than that.
    const auto worth = [&](int64_t row) {
      const double hits = std::min(1.0, hits_[static_cast<size_t>(row)]);
      const Tree::Node& node = draft.tree[row];
      return row < keep ? hits : node.source == SF_STREAMS && node.depth < keep ? kPruner * hits : 0.0;
    };
    int64_t nodes = std::min(draft.tree.size(), model_.spec.verify[m].rows);
    while (nodes > 1 && worth(nodes - 1) < least) --nodes;
    double hits = 0.0;
    for (int64_t row = 1; row < nodes; ++row) hits += worth(row);
    const double beside = std::max(costs_.of(method, nodes) - plain_ms(), kLeastCost * plain_ms());
    const double gain = left - now * beside + hits;
    if (nodes > 1 && gain > found.gain) found = {method, nodes, gain, hits};
    if (nodes == draft.tree.size() && nodes <= keep) break;  // the whole tree: wider methods have nothing to add
  }
  return found;
}

// Whether streams for the next step are worth a price, given the gain of the free draft.
bool Plan::wanted(double free_gain, double price) const {
  if (model_.spec.num_streams == 0 || streams_failed_) return false;
  return tries_ < kTries || worth_ - free_gain > rate() * price;
}

Step Plan::step(const std::vector<int64_t>& tokens, int64_t room, int64_t width) {
  Step plain;
  if (width > 0) {  // one width always
    draft_.tree.set_root(tokens.back());
    if (width < 2 || room < 2) return plain;  // the last token's successor is of no use
    if (!damage_.empty()) plain.reason = damage_.c_str();
    if (model_.spec.num_streams > 0) {
      grow_streams(tokens.back(), width, room - 1, draft_.tree);
      if (streams_failed_) return plain.reason = damage_.c_str(), plain;
    } else {
      look_up_.follow(tokens, static_cast<int64_t>(tokens.size()));
      bool found = false;
      attempt(look_up_failed_, draft_.tree, [&] { found = look_up_.join(tokens, width, room - 1, draft_.tree); });
      if (!found) return plain;
    }
    int64_t method = 0;
    while (model_.spec.verify[static_cast<size_t>(method)].rows < draft_.tree.size()) ++method;
    return {method, draft_.tree.size(), nullptr};
  }
  look_up_.follow(tokens, static_cast<int64_t>(tokens.size()));
  if (looked_ && !streams_ready_) {
    std::swap(draft_, next_);
  } else if (room > 1) {
    draft(tokens, room - 1, draft_);
  }
  looked_ = false;
  if (room < 2) {
    draft_.tree.set_root(tokens.back());
    draft_.of_streams = draft_.looked_up = false;
    draft_.streams.set_root(tokens.back());
    draft_.table.set_root(tokens.back());
    return plain;
  }
  if (plain_is_stale()) return plain;
  const Choice choice = best(draft_);
  const double beside = choice.method == kDecode ? 0.0 : costs_.of(choice.method, choice.nodes) - plain_ms();
  if (choice.method != kDecode && affords(beside - kSure * choice.hits * plain_ms()))
    return {choice.method, choice.nodes, nullptr};
  const double price = ride_price();
  const bool buys = wanted(0.0, price) && can_buy(price);
  if (buys && model_.spec.rider() >= 0) return {model_.spec.rider(), 1, nullptr};
  if (buys && !model_.spec.deferred && !streams_ready_) return {0, 1, nullptr};
  if (!buys)
    plain.reason = !damage_.empty()                                          ? damage_.c_str()
                   : model_.spec.num_streams == 0 && draft_.tree.size() == 1 ? kNothing
                                                                             : reason_;
  return plain;
}

bool Plan::learn(const Step& step, std::span<const int64_t> chosen, const int64_t* ids, const float* log_probs,
                 Took took, const std::vector<int64_t>& tokens, int64_t room, int64_t width) {
  take_streams(ids, log_probs);
  if (width > 0) return width > 1 && model_.spec.deferred && !streams_ready_ && !streams_failed_;
  costs_.observe(step.method, step.nodes, took.draft + took.pass);
  const double cost = costs_.of(step.method, step.nodes), brought = static_cast<double>(chosen.size());
  const double gained = brought - cost / plain_ms();
  budget_ = std::clamp(budget_ + (step.method == kDecode ? kTrickle : gained), -kMostDebt, kMostBudget);
  tokens_ = kRecent * tokens_ + brought;
  ms_ = kRecent * ms_ + cost;
  position_ += static_cast<int64_t>(chosen.size());
  if (draft_.of_streams) {
    of_streams_.learn(draft_.streams, chosen);
    // What a plain pass adds for the next step's streams is their price, not this step's.
    const double beside = step.method >= 0 && step.method == model_.spec.rider() ? ride_price() : 0.0;
    // The end of a text says nothing of its middle.
    if (room >= 8) judge(brought - 1 - rate() * (cost - beside - plain_ms()));
  }
  if (draft_.table.size() > 1) of_table_.learn(draft_.table, chosen);
  if (draft_.looked_up) look_up_.learn(chosen);
  if (model_.spec.num_streams == 0 || streams_failed_) return false;
  if (!wanted(0.0, cheapest()) && position_ >= retry_) {
    tries_ = 0;
    of_streams_.doubt();
  }
  if (wanted(0.0, cheapest()) && !can_buy(cheapest()) && !streams_ready_) back_off(kCosts);
  if (!model_.spec.deferred || streams_ready_ || room < 2) return false;
  // Streams of the next plain pass come half as often as bought ones, so those must gain what both cost beside.
  const bool rides = model_.spec.rider() >= 0;
  const double least = rides ? std::max(price(), 2 * price() - ride_price()) : price();
  if ((rides && tries_ < kTries) || !wanted(0.0, least) || !can_buy(price())) return false;
  look_up_.follow(tokens, static_cast<int64_t>(tokens.size()));
  draft(tokens, room - 1, next_);
  looked_ = true;
  return wanted(best(next_).gain, least);
}

// What a step with streams gained. Streams that do not pay are left alone for a while.
void Plan::judge(double gain) {
  ++tries_;
  worth_ += std::max(kLearn, 1.0 / static_cast<double>(tries_)) * (gain - worth_);
  if (tries_ < kTries) return;
  if (worth_ > rate() * cheapest())
    back_off_ = kBackOff;
  else if (position_ >= retry_)
    back_off(of_streams_.ratio(1) > 0.7 ? kCosts : kRejected);
}

// Streams are left alone for a while: they did not pay, or the budget cannot pay for finding out.
void Plan::back_off(const char* reason) {
  reason_ = reason;
  tries_ = kTries;
  worth_ = std::min(worth_, 0.0);
  retry_ = position_ + back_off_;
  back_off_ = std::min(2 * back_off_, kMostBackOff);
}

// Whether the budget pays for streams and for a verify pass that brings nothing.
bool Plan::can_buy(double price) const {
  const int64_t narrowest = model_.spec.rider() + 1;  // that takes a draft
  return affords(price + std::max(0.0, costs_.of(narrowest) - plain_ms()));
}

void Plan::learn_streams(const int64_t* ids, const float* log_probs, double ms, int64_t width) {
  take_streams(ids, log_probs);
  if (width > 0) return;
  costs_.observe(kStreams, 1, ms);
  const double spent = costs_.of(kStreams);
  budget_ -= spent / plain_ms();
  ms_ += spent;
}

void Plan::take_streams(const int64_t* ids, const float* log_probs) {
  streams_ready_ = ids != nullptr && log_probs != nullptr && !streams_failed_;
  if (!streams_ready_) return;
  std::copy_n(ids, ids_.size(), ids_.begin());
  std::copy_n(log_probs, log_probs_.size(), log_probs_.begin());
}

}  // namespace streamfuse
