#include "rounding.h"

#include "guide.h"

#include <algorithm>

#include "error.h"
#include "numbers.h"

namespace streamfuse {
namespace {

// How often the model splits forced text as the constraint does: the initial share, its weight, and the decay.
constexpr double kCanonicalShare = 0.97, kCanonicalTrials = 20.0, kCanonicalDecay = 0.98;
constexpr double kHabitDecay = 0.97;  // per choice: about the last thirty count
// What a prior weighs in a habit, in choices: the share above for forced text, tokens that were not chosen yet in a
// state with few continuations, and in both the habit that ignores the token before.
constexpr double kCanonicalWeight = 0.5, kUnknownWeight = 2.0, kGeneralWeight = 1.0;
constexpr size_t kMostHabits = 4096;  // 0.4 MB
constexpr double kLeastOffer = 0.05;  // probability

// False if the constraint fails.
template <typename Ask>
bool succeeds(const Ask& ask) {
  try {
    ask();
    return true;
  } catch (const Failure&) {
    return false;
  }
}

}  // namespace

Guide::Guide() { forget(); }

void Guide::forget() {
  habits_.clear();
  canonical_hits_ = kCanonicalTrials * kCanonicalShare;
  canonical_trials_ = kCanonicalTrials;
}

void Guide::begin(Constraint* constraint) {
  constraint_ = constraint;
  refused_ = 0;
  begin_draft(-1, 0);
}

void Guide::begin_draft(int64_t root, int64_t widest) {
  root_ = root;
  widest_ = widest;
  nodes_.assign(1, {-1, -1, 0});
  at_ = 0;
}

void Guide::allows(int32_t state, std::span<const int64_t> tokens, uint8_t* allowed) {
  if (constraint_ == nullptr) {
    std::fill_n(allowed, tokens.size(), uint8_t{1});
    return;
  }
  may_follow(state, tokens, allowed);
  refused_ += std::count(allowed, allowed + tokens.size(), 0);
}

bool Guide::allows(int32_t state, int64_t token) {
  uint8_t allowed = 0;
  allows(state, {&token, 1}, &allowed);
  return allowed != 0;
}

void Guide::may_follow(int32_t state, std::span<const int64_t> tokens, uint8_t* allowed) {
  std::fill_n(allowed, tokens.size(), uint8_t{0});
  if (node(state).end) return;
  const bool known = succeeds([&] {
    move(state);
    constraint_->allows(tokens, allowed);
  });
  if (!known) std::fill_n(allowed, tokens.size(), uint8_t{0});
}

bool Guide::forces(int32_t state) {
  if (constraint_ == nullptr) return false;
  ask(state);
  return node(state).canonical >= 0;
}

// A span of forced tokens is asked for once: a constraint may split the same text otherwise in the middle of it.
void Guide::ask(int32_t state) {
  if (node(state).asked) return;
  node(state).asked = true;
  if (node(state).end) return;
  succeeds([&] {
    move(state);
    const std::span<const int64_t> forced = constraint_->forced(widest_);
    if (forced.empty()) node(state).key = constraint_->choice_key();
    for (const int64_t token : forced) {
      Node& here = node(state);
      here.asked = true;
      here.canonical = token;
      here.key = static_cast<uint64_t>(token) * 2 + 2;  // choice_key returns odd numbers
      state = after(state, token);
    }
  });
}

Guide::Offers Guide::offers(int32_t state) {
  if (constraint_ == nullptr) return {};
  ask(state);
  if (!node(state).has_offers) {
    const Offers found = find_offers(state);
    node(state).has_offers = true;
    node(state).offers = found;
  }
  return node(state).offers;
}

// The choices after the same token in such states, and as their prior those after any token.
Guide::Offers Guide::find_offers(int32_t state) {
  struct Likely {
    int64_t token;
    double share;
  };
  std::array<Likely, 2 * (kOffers + 1) + 1> likely;
  size_t count = 0;
  const auto mix = [&](uint64_t key, double prior) {
    const auto found = habits_.find(key);
    if (found == habits_.end()) return;
    const double total = found->second.total + prior;
    for (size_t i = 0; i < count; ++i) likely[i].share *= prior / total;
    for (const Habit::Choice& choice : found->second.choices) {
      if (choice.token < 0) continue;
      size_t place = 0;
      while (place < count && likely[place].token != choice.token) ++place;
      if (place == count) likely[count++] = {choice.token, 0.0};
      likely[place].share += choice.weight / total;
    }
  };
  const int64_t canonical = node(state).canonical;
  if (canonical >= 0) likely[count++] = {canonical, canonical_hits_ / canonical_trials_};
  if (node(state).key != 0) {
    mix(node(state).key, canonical >= 0 ? kCanonicalWeight : kUnknownWeight);
    mix(key_after_token(state), kGeneralWeight);
  }
  std::stable_sort(likely.begin(), likely.begin() + static_cast<int64_t>(count),
                   [](const Likely& a, const Likely& b) { return a.share > b.share; });
  while (count > 0 && (count > kOffers || likely[count - 1].share < kLeastOffer)) --count;
  std::array<int64_t, kOffers> tokens;
  std::array<uint8_t, kOffers> allowed{1};
  for (size_t i = 0; i < count; ++i) tokens[i] = likely[i].token;
  if (count > 1 || (count == 1 && tokens[0] != canonical)) may_follow(state, {tokens.data(), count}, allowed.data());
  Offers found;
  for (size_t i = 0; i < count; ++i)
    if (allowed[i]) found.list[found.count++] = {tokens[i], std::min(0.0, logarithm(likely[i].share))};  // rounding
  return found;
}

uint64_t Guide::key_after_token(int32_t state) {
  const uint64_t token = static_cast<uint64_t>(state == 0 ? root_ : node(state).token) + 1;
  return node(state).key ^ token * 0x9E3779B97F4A7C15u;
}

void Guide::learn(int32_t state, int64_t chosen) {
  if (constraint_ == nullptr || state >= static_cast<int32_t>(nodes_.size())) return;
  const Node& here = node(state);
  if (here.key == 0) return;
  if (habits_.size() + 2 > kMostHabits) habits_.clear();
  const auto [habit, is_new] = habits_.try_emplace(here.key);
  if (is_new && here.canonical >= 0) {
    canonical_hits_ = kCanonicalDecay * canonical_hits_ + (chosen == here.canonical);
    canonical_trials_ = kCanonicalDecay * canonical_trials_ + 1;
  }
  habit->second.add(chosen);
  habits_[key_after_token(state)].add(chosen);
}

void Guide::Habit::add(int64_t token) {
  total = kHabitDecay * total + 1;
  Choice* place = &choices[0];
  for (Choice& choice : choices) {
    choice.weight *= kHabitDecay;
    if (place->token == token) continue;
    if (choice.token == token || choice.weight < place->weight) place = &choice;
  }
  if (place->token != token) *place = {token, 0.0};
  place->weight += 1;
}

int32_t Guide::after(int32_t state, int64_t token) {
  if (constraint_ == nullptr) return 0;
  for (int32_t child = node(state).child; child >= 0; child = node(child).sibling)
    if (node(child).token == token) return child;
  const int32_t made = static_cast<int32_t>(nodes_.size());
  Node added{token, state, node(state).depth + 1};
  added.sibling = node(state).child;
  added.end = constraint_->is_end(token);
  nodes_.push_back(added);
  node(state).child = made;
  return made;
}

void Guide::move(int32_t state) {
  path_.clear();
  int32_t from = at_, to = state;
  while (from != to) {  // up to the common ancestor
    if (node(to).depth >= node(from).depth) {
      path_.push_back(to);
      to = node(to).parent;
    } else {
      from = node(from).parent;
    }
  }
  if (at_ != from) constraint_->rollback(node(at_).depth - node(from).depth);
  at_ = from;
  for (auto step = path_.rbegin(); step != path_.rend(); ++step) {
    constraint_->accept(node(*step).token);
    at_ = *step;
  }
}

}  // namespace streamfuse
