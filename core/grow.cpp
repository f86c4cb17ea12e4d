#include "rounding.h"

#include "grow.h"

#include <algorithm>
#include <cmath>

#include "error.h"
#include "numbers.h"

namespace streamfuse {

StreamGrower::StreamGrower(const Model& model) : model_(model) {
  const size_t k = static_cast<size_t>(model.spec.top_k);
  gated_.resize(static_cast<size_t>(model.tables.rank));
  scores_.resize(k);
  slots_.resize(k * static_cast<size_t>(model.spec.num_streams));
  open_.reserve(static_cast<size_t>(model.spec.widest()) + 1);
}

bool StreamGrower::before(const Candidate& a, const Candidate& b) {
  if (a.log_prob != b.log_prob) return a.log_prob > b.log_prob;
  if (a.depth != b.depth) return a.depth < b.depth;
  if (a.parent != b.parent) return a.parent < b.parent;
  return a.rank < b.rank;
}

void StreamGrower::grow(int64_t root, const int64_t* ids, const float* log_probs, int64_t width, int64_t depth,
                        Tree& out) {
  const int64_t levels = std::min(depth, model_.spec.num_streams);
  out.set_root(root);
  open_.clear();
  if (width < 2 || levels < 1) return;
  find_slots(ids, levels * model_.spec.top_k);
  offer(out, 0, ids, log_probs, width - 1);
  while (out.size() < width && !open_.empty()) {
    const Candidate best = open_.front();
    open_.erase(open_.begin());
    const int64_t row = out.add(best.token, best.parent, best.log_prob, SF_STREAMS);
    if (row + 1 < width && best.depth < levels) offer(out, row, ids, log_probs, width - out.size());
  }
}

// After a pass over all weights the tables are in no processor cache: prefetch all rows that may be needed at once,
// instead of waiting for one after the other.
void StreamGrower::find_slots(const int64_t* ids, int64_t count) {
  const Tables& tables = model_.tables;
  for (int64_t i = 0; i < count; ++i) {
    if (ids[i] < 0 || ids[i] >= model_.spec.vocab_size)
      throw Failure(SF_EXECUTION, "a stream proposed token " + std::to_string(ids[i]) + ", outside the vocabulary");
    if (tables.rank > 0) __builtin_prefetch(&tables.slot_of[static_cast<size_t>(ids[i])]);
  }
  if (tables.rank == 0) return;
  for (int64_t i = 0; i < count; ++i) {
    const int32_t slot = tables.slot_of[static_cast<size_t>(ids[i])];
    if (slot < 0)
      throw Failure(SF_EXECUTION,
                    "a stream proposed token " + std::to_string(ids[i]) + ", outside the stream vocabulary");
    slots_[static_cast<size_t>(i)] = slot;
    for (int64_t at = 0; at < tables.rank; at += 32) {
      __builtin_prefetch(tables.parent_right + slot * tables.rank + at);
      __builtin_prefetch(tables.parent_left + ids[i] * tables.rank + at);
    }
  }
}

// Adds the children of a row that are among the best `room` open candidates.
void StreamGrower::offer(const Tree& tree, int64_t row, const int64_t* ids, const float* log_probs, int64_t room) {
  const int64_t level = tree[row].depth, k = model_.spec.top_k;
  score(level, tree[row].token, log_probs + level * k);
  for (int64_t rank = 0; rank < k; ++rank) {
    const Candidate child{tree[row].log_prob + std::min(scores_[static_cast<size_t>(rank)], 0.0), level + 1, row, rank,
                          ids[level * k + rank]};
    if (!(child.log_prob > -HUGE_VAL)) continue;
    if (static_cast<int64_t>(open_.size()) >= room) {
      open_.resize(static_cast<size_t>(room));
      if (!before(child, open_.back())) continue;
      open_.pop_back();
    }
    open_.insert(std::upper_bound(open_.begin(), open_.end(), child, before), child);
  }
}

// scores_[rank]: log-probability of each candidate of a stream under this parent.
void StreamGrower::score(int64_t level, int64_t parent, const float* own) {
  const Tables& tables = model_.tables;
  const int64_t k = model_.spec.top_k, rank = tables.rank;
  for (int64_t c = 0; c < k; ++c) scores_[static_cast<size_t>(c)] = own[c];
  if (rank == 0) return;
  const uint16_t* left = tables.parent_left + parent * rank;
  const float* gate = tables.gate + level * rank;
  for (int64_t i = 0; i < rank; ++i)
    gated_[static_cast<size_t>(i)] = static_cast<double>(from_half(left[i])) * static_cast<double>(gate[i]);
  double mass = 0.0, stated = 0.0;
  for (int64_t c = 0; c < k; ++c) {
    const uint16_t* right = tables.parent_right + slots_[static_cast<size_t>(level * k + c)] * rank;
    double term = 0.0;
    for (int64_t i = 0; i < rank; ++i)
      term += gated_[static_cast<size_t>(i)] * static_cast<double>(from_half(right[i]));
    double& score = scores_[static_cast<size_t>(c)];
    stated += exponential(score);
    score += term;
    if (!(score <= 700.0)) throw Failure(SF_EXECUTION, "a stream's log-probability is not a number");
    mass += exponential(score);
  }
  const double norm = logarithm(mass + std::max(0.0, 1.0 - stated));
  for (double& score : scores_) score -= norm;
}

TableGrower::TableGrower(const Model& model) : model_(model) {
  children_.reserve(static_cast<size_t>(model.spec.widest()));
  open_.reserve(2 * static_cast<size_t>(model.spec.widest()));
}

void TableGrower::grow(std::span<const int64_t> text, int64_t width, int64_t depth, Tree& out) {
  const int64_t levels = std::min(depth, kTableDepth);
  text_ = text;
  out.set_root(text.back());
  children_.clear();
  open_.clear();
  children_.push_back(levels > 0 && exists() ? entries(out, 0) : Span{0, 0});
  offer(out, 0, 0);
  while (!open_.empty() && out.size() < width) {
    const Candidates::One best = open_.take();
    const int64_t token = model_.tables.ngram_ids[children_[static_cast<size_t>(best.parent)].begin + best.rank];
    const int64_t row = out.add(token, best.parent, best.log_prob, SF_TABLE);
    children_.push_back(out[row].depth < levels ? entries(out, row) : Span{0, 0});
    offer(out, best.parent, best.rank + 1);
    offer(out, row, 0);
  }
}

void TableGrower::offer(const Tree& tree, int64_t parent, int64_t rank) {
  const Span span = children_[static_cast<size_t>(parent)];
  if (span.begin + rank >= span.end) return;
  const double own = static_cast<double>(from_half(model_.tables.ngram_log_probs[span.begin + rank]));
  open_.add(tree[parent].log_prob + own, parent, rank);
}

// Uses the longest context in the table that matches the path up to `row` and the text before the root. Contexts with
// the same last token are adjacent, that of the token alone first; those of three and more tokens extend another one.
TableGrower::Span TableGrower::entries(const Tree& tree, int64_t row) const {
  const Tables& tables = model_.tables;
  const int64_t vocabulary = model_.spec.vocab_size, token = tree[row].token;
  const int64_t first = tables.ngram_first[static_cast<size_t>(token)];
  const int64_t end = tables.ngram_first[static_cast<size_t>(token) + 1];
  const int64_t alone = token * (vocabulary + 1);
  int64_t place = first < end && tables.ngram_keys[first] == alone ? first : -1;
  size_t at = text_.size() - 1;
  for (int64_t length = 2; length <= kTableContext; ++length) {
    int64_t before = 0;
    if (row > 0) {
      row = tree[row].parent;
      before = tree[row].token;
    } else if (at > 0) {
      before = text_[--at];
    } else {
      break;
    }
    const int64_t longer = length == 2 ? find(alone + before + 1, first, end)
                                       : find(vocabulary * (vocabulary + 1) + place * vocabulary + before,
                                              tables.ngram_first.back(), tables.contexts);
    if (longer == (length == 2 ? end : tables.contexts)) break;
    place = longer;
  }
  if (place < 0) return {0, 0};
  return {tables.ngram_starts[place], tables.ngram_starts[place + 1]};
}

int64_t TableGrower::find(int64_t key, int64_t first, int64_t end) const {
  const int64_t* keys = model_.tables.ngram_keys;
  const int64_t* found = std::lower_bound(keys + first, keys + end, key);
  return found != keys + end && *found == key ? found - keys : end;
}

}  // namespace streamfuse
