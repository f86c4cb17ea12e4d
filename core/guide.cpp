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
  if (!nodes_[static_cast<size_t>(state)].end) {
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
  if (!nodes_[static_cast<size_t>(state)].asked) {
    nodes_[static_cast<size_t>(state)].asked = true;
    if (nodes_[static_cast<size_t>(state)].end) return -1;
    succeeds([&] { ask_forced(state); });
  }
  return nodes_[static_cast<size_t>(state)].forced;
}

void Guide::ask_forced(int32_t state) {
  move(state);
  for (const int64_t token : constraint_->forced(widest_)) {
    Node& node = nodes_[static_cast<size_t>(state)];
    node.asked = true;
    node.spelled = node.forced = token;
    if (const auto habit = habits_.find(token); habit != habits_.end()) {
      move(state);
      if (constraint_->allows(habit->second)) {
        node.forced = habit->second;
        return;  // what follows that token is asked for when it is needed
      }
    }
    state = after(state, token);
  }
}

void Guide::learn(int32_t state, int64_t chosen) {
  if (state >= static_cast<int32_t>(nodes_.size())) return;
  const int64_t spelled = nodes_[static_cast<size_t>(state)].spelled;
  if (spelled < 0) return;
  if (spelled == chosen)
    habits_.erase(spelled);
  else
    habits_[spelled] = chosen;
}

int32_t Guide::after(int32_t state, int64_t token) {
  if (constraint_ == nullptr) return 0;
  const Node& parent = nodes_[static_cast<size_t>(state)];
  for (int32_t child = parent.child; child >= 0; child = nodes_[static_cast<size_t>(child)].sibling)
    if (nodes_[static_cast<size_t>(child)].token == token) return child;
  const int32_t made = static_cast<int32_t>(nodes_.size());
  Node node{token, state, parent.depth + 1};
  node.sibling = parent.child;
  node.end = constraint_->is_end(token);
  nodes_.push_back(node);
  nodes_[static_cast<size_t>(state)].child = made;
  return made;
}

void Guide::move(int32_t state) {
  path_.clear();
  int32_t from = at_, to = state;
  const auto up = [&](int32_t node) { return nodes_[static_cast<size_t>(node)].parent; };
  const auto depth = [&](int32_t node) { return nodes_[static_cast<size_t>(node)].depth; };
  while (from != to) {
    if (depth(to) >= depth(from)) {
      path_.push_back(to);
      to = up(to);
    } else {
      from = up(from);
    }
  }
  if (at_ != from) constraint_->rollback(depth(at_) - depth(from));
  at_ = from;
  for (auto node = path_.rbegin(); node != path_.rend(); ++node) {
    constraint_->accept(nodes_[static_cast<size_t>(*node)].token);
    at_ = *node;
  }
}

}  // namespace streamfuse
