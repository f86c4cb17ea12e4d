#include "rounding.h"

#include "guide.h"

#include <algorithm>

#include "error.h"

namespace streamfuse {
namespace {

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

void Guide::begin(Constraint* constraint) {
  constraint_ = constraint;
  refused_ = 0;
  begin_draft(0);
}

void Guide::begin_draft(int64_t widest) {
  widest_ = widest;
  nodes_.assign(1, {-1, -1, 0});
  at_ = 0;
}

void Guide::allows(int32_t state, std::span<const int64_t> tokens, uint8_t* allowed) {
  if (constraint_ == nullptr) {
    std::fill_n(allowed, tokens.size(), uint8_t{1});
    return;
  }
  std::fill_n(allowed, tokens.size(), uint8_t{0});
  if (!node(state).end) {
    const bool known = succeeds([&] {
      move(state);
      constraint_->allows(tokens, allowed);
    });
    if (!known) std::fill_n(allowed, tokens.size(), uint8_t{0});
  }
  refused_ += std::count(allowed, allowed + tokens.size(), 0);
}

bool Guide::allows(int32_t state, int64_t token) {
  if (constraint_ == nullptr) return true;
  uint8_t allowed = 0;
  allows(state, {&token, 1}, &allowed);
  return allowed != 0;
}

int64_t Guide::forced(int32_t state) {
  if (constraint_ == nullptr) return -1;
  if (!node(state).asked) {
    node(state).asked = true;
    if (node(state).end) return -1;
    succeeds([&] { ask_forced(state); });
  }
  return node(state).forced;
}

void Guide::ask_forced(int32_t state) {
  move(state);
  for (const int64_t token : constraint_->forced(widest_)) {
    Node& here = node(state);
    here.asked = true;
    here.canonical = here.forced = token;
    if (const auto other = preferred_.find(token); other != preferred_.end()) {
      move(state);
      if (constraint_->allows(other->second)) {
        here.forced = other->second;
        return;  // what follows that token is asked for when it is needed
      }
    }
    state = after(state, token);
  }
}

void Guide::learn(int32_t state, int64_t chosen) {
  if (state >= static_cast<int32_t>(nodes_.size())) return;
  const int64_t canonical = node(state).canonical;
  if (canonical < 0) return;
  if (canonical == chosen)
    preferred_.erase(canonical);
  else
    preferred_[canonical] = chosen;
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
