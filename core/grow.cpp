#include "rounding.h"

#include "grow.h"

#include <algorithm>
#include <cmath>

#include "error.h"
#include "numbers.h"

namespace streamfuse {

StreamGrower::StreamGrower(const Model& model) : model_(model) {
  const size_t k = static_cast<size_t>(model.spec.top_k);
  scores_.resize(k);
  terms_.resize(k);
  allowed_.resize(k);
  slots_.resize(k * static_cast<size_t>(model.spec.num_streams));
  right_rows_.resize(slots_.size() * static_cast<size_t>(model.tables.rank));
  listed_mass_.reserve(static_cast<size_t>(model.spec.num_streams));
  noise_.reserve(slots_.size());
  open_.reserve(static_cast<size_t>(model.spec.widest()) + 1);
}

bool StreamGrower::before(const Candidate& a, const Candidate& b) {
  if (a.log_prob != b.log_prob) return a.log_prob > b.log_prob;
  if (a.depth != b.depth) return a.depth < b.depth;
  if (a.parent != b.parent) return a.parent < b.parent;
  return a.rank < b.rank;
}

void StreamGrower::grow(int64_t root, const int64_t* ids, const float* log_probs, int64_t width, int64_t depth,
                        const Coupling& coupling, Guide& guide, Tree& out) {
  const int64_t levels = ids == nullptr ? 0 : std::min(depth, model_.spec.num_streams);
  out.set_root(root);
  open_.clear();
  if (width < 2 || depth < 1) return;
  if (levels > 0) find_slots(ids, levels * model_.spec.top_k);
  noise_.clear();
  listed_mass_.clear();
  offer(out, 0, ids, log_probs, levels, width - 1, coupling, guide);
  while (out.size() < width && !open_.empty()) {
    const Candidate best = open_.front();
    open_.erase(open_.begin());
    const int32_t state = out[best.parent].state;
    const bool guided = best.rank < 0;
    if (out.repeats_guided(best.parent, best.token, guided)) continue;
    const int64_t row = out.add(best.token, best.parent, best.log_prob, guided ? SF_GRAMMAR : SF_STREAMS, guided,
                                guide.after(state, best.token), guided && guide.forces(state));
    if (row + 1 < width && best.depth < depth)
      offer(out, row, ids, log_probs, levels, width - out.size(), coupling, guide);
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
void StreamGrower::offer(const Tree& tree, int64_t row, const int64_t* ids, const float* log_probs, int64_t levels,
                         int64_t room, const Coupling& coupling, Guide& guide) {
  const int64_t level = tree[row].depth, k = model_.spec.top_k;
  const int32_t state = tree[row].state;
  int64_t guided = 0;
  for (const Guide::Offer& offer : guide.offers(state))
    insert({tree[row].log_prob + offer.log_prob, level + 1, row, --guided, offer.token}, room);
  if (level >= levels || guide.forces(state)) return;
  score(level, tree[row].token, log_probs);
  if (coupling.active()) couple(level, ids, coupling);
  restrict_to_allowed(state, ids + level * k, guide);
  for (int64_t rank = 0; rank < k; ++rank) {
    const double score = scores_[static_cast<size_t>(rank)];
    if (score > -HUGE_VAL)
      insert({tree[row].log_prob + std::min(score, 0.0), level + 1, row, rank, ids[level * k + rank]}, room);
  }
}

void StreamGrower::insert(const Candidate& child, int64_t room) {
  if (!(child.log_prob > -HUGE_VAL)) return;
  if (static_cast<int64_t>(open_.size()) >= room) {
    open_.resize(static_cast<size_t>(room));
    if (!before(child, open_.back())) return;
    open_.pop_back();
  }
  open_.insert(std::upper_bound(open_.begin(), open_.end(), child, before), child);
}

// Candidates that the constraint refuses get the score -infinity, and the others their share of the remaining
// probability.
void StreamGrower::restrict_to_allowed(int32_t state, const int64_t* ids, Guide& guide) {
  guide.allows(state, {ids, scores_.size()}, allowed_.data());
  double refused = 0.0;
  for (size_t c = 0; c < scores_.size(); ++c) {
    if (allowed_[c]) continue;
    refused += exponential(scores_[c]);
    scores_[c] = -HUGE_VAL;
  }
  if (refused == 0.0) return;
  const double norm = logarithm(std::max(1.0 - refused, 1e-9));
  for (double& score : scores_) score -= norm;
}

// scores_ given the noise of each candidate, which is the same under all parents.
void StreamGrower::couple(int64_t level, const int64_t* ids, const Coupling& coupling) {
  const size_t start = static_cast<size_t>(level) * scores_.size();
  for (size_t c = noise_.size(); c < start + scores_.size(); ++c)
    noise_.push_back(coupling.noise(static_cast<int64_t>(c / scores_.size()), ids[c]));
  coupling.apply(&noise_[start], scores_);
}

// Converts a level's rows of parent_right and sums its candidates' probabilities: both are the same for all parents.
void StreamGrower::prepare(int64_t level, const float* own) {
  const int64_t k = model_.spec.top_k, rank = model_.tables.rank;
  double listed = 0.0;
  for (int64_t c = 0; c < k; ++c) {
    const uint16_t* const right = model_.tables.parent_right + slots_[static_cast<size_t>(level * k + c)] * rank;
    double* const to = right_rows_.data() + level * rank * k + c;
    for (int64_t i = 0; i < rank; ++i) to[i * k] = static_cast<double>(from_half(right[i]));
    listed += exponential(own[c]);
  }
  listed_mass_.push_back(listed);
}

// scores_[rank]: log-probability of each candidate of a stream under this parent.
void StreamGrower::score(int64_t level, int64_t parent, const float* log_probs) {
  const Tables& tables = model_.tables;
  const int64_t k = model_.spec.top_k, rank = tables.rank;
  for (int64_t c = 0; c < k; ++c) scores_[static_cast<size_t>(c)] = log_probs[level * k + c];
  if (rank == 0) return;
  for (int64_t l = static_cast<int64_t>(listed_mass_.size()); l <= level; ++l) prepare(l, log_probs + l * k);
  const uint16_t* left = tables.parent_left + parent * rank;
  const float* gate = tables.gate + level * rank;
  const double* right = right_rows_.data() + level * rank * k;
  double* const terms = terms_.data();
  std::fill(terms, terms + k, 0.0);
  for (int64_t i = 0; i < rank; ++i, right += k) {
    const double gated = static_cast<double>(from_half(left[i])) * static_cast<double>(gate[i]);
    for (int64_t c = 0; c < k; ++c) terms[c] += gated * right[c];
  }
  double mass = 0.0;
  for (int64_t c = 0; c < k; ++c) {
    double& score = scores_[static_cast<size_t>(c)];
    score += terms[c];
    if (!(score <= 700.0)) throw Failure(SF_EXECUTION, "a stream's log-probability is not a number");
    mass += exponential(score);
  }
  const double norm = logarithm(mass + std::max(0.0, 1.0 - listed_mass_[static_cast<size_t>(level)]));
  for (double& score : scores_) score -= norm;
}

TableGrower::TableGrower(const Model& model) : model_(model) {
  children_.reserve(static_cast<size_t>(model.spec.widest()));
  levels_.reserve(static_cast<size_t>(model.spec.widest()));
  open_.reserve(2 * static_cast<size_t>(model.spec.widest()));
}

void TableGrower::grow(std::span<const int64_t> text, int64_t width, int64_t depth, const Coupling& coupling,
                       Guide& guide, Tree& out) {
  text_ = text;
  out.set_root(text.back());
  levels_.assign(1, 0);
  entries_.clear();
  children_.assign(1, depth > 0 && exists() ? entries(out, 0, coupling) : Span{0, 0});
  open_.clear();
  if (depth > 0) offer(out, 0, guide);
  while (!open_.empty() && out.size() < width) {
    const Candidates::One best = open_.take();
    const Span span = children_[static_cast<size_t>(best.parent)];
    const int32_t state = out[best.parent].state;
    const bool guided = best.rank < 0;
    const int64_t token = guided ? guide.offers(state)[-1 - best.rank].token
                                 : entries_[span.begin + static_cast<size_t>(best.rank)].token;
    if (!guided) offer_entry(out, best.parent, best.rank + 1, guide);
    if (out.repeats_guided(best.parent, token, guided)) continue;
    const int64_t row = out.add(token, best.parent, best.log_prob, guided ? SF_GRAMMAR : SF_TABLE, guided,
                                guide.after(state, token), guided && guide.forces(state));
    levels_.push_back(levels_[static_cast<size_t>(best.parent)] + !guided);
    const bool extends = levels_.back() < kTableDepth && exists();
    children_.push_back(extends ? entries(out, row, coupling) : Span{0, 0});
    if (out[row].depth < depth) offer(out, row, guide);
  }
}

// Offers what the constraint makes likely after a row, with negative ranks, and unless it is forced the best entry.
void TableGrower::offer(const Tree& tree, int64_t parent, Guide& guide) {
  const int32_t state = tree[parent].state;
  int64_t guided = 0;
  for (const Guide::Offer& offer : guide.offers(state))
    open_.add(tree[parent].log_prob + offer.log_prob, parent, --guided);
  if (!guide.forces(state)) offer_entry(tree, parent, 0, guide);
}

// Offers the best entry for a row from this rank on that may follow.
void TableGrower::offer_entry(const Tree& tree, int64_t parent, int64_t rank, Guide& guide) {
  const Span span = children_[static_cast<size_t>(parent)];
  for (; span.begin + static_cast<size_t>(rank) < span.end; ++rank) {
    const Entry& entry = entries_[span.begin + static_cast<size_t>(rank)];
    const double path = tree[parent].log_prob + entry.log_prob;
    if (!(path > kLeastPath)) return;  // the rest is less likely
    if (!guide.allows(tree[parent].state, entry.token)) continue;
    open_.add(path, parent, rank);
    return;
  }
}

TableGrower::Span TableGrower::entries(const Tree& tree, int64_t row, const Coupling& coupling) {
  const Tables& tables = model_.tables;
  const int64_t place = longest_context(tree, row);
  const size_t begin = entries_.size();
  if (place < 0) return {begin, begin};
  for (int32_t at = tables.ngram_starts[place]; at < tables.ngram_starts[place + 1]; ++at)
    entries_.push_back({tables.ngram_ids[at], static_cast<double>(from_half(tables.ngram_log_probs[at]))});
  if (coupling.active()) couple(tree[row].depth, std::span(entries_).subspan(begin), coupling);
  return {begin, entries_.size()};
}

void TableGrower::couple(int64_t depth, std::span<Entry> entries, const Coupling& coupling) {
  noise_.clear();
  log_probs_.clear();
  for (const Entry& entry : entries) {
    noise_.push_back(coupling.noise(depth, entry.token));
    log_probs_.push_back(entry.log_prob);
  }
  coupling.apply(noise_.data(), log_probs_);
  for (size_t i = 0; i < entries.size(); ++i) entries[i].log_prob = log_probs_[i];
  std::stable_sort(entries.begin(), entries.end(),
                   [](const Entry& a, const Entry& b) { return a.log_prob > b.log_prob; });
}

// The longest context in the table that matches the path up to `row` and the text before the root; -1: none. Contexts
// with the same last token are adjacent, that of the token alone first; those of three and more tokens extend another
// one.
int64_t TableGrower::longest_context(const Tree& tree, int64_t row) const {
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
  return place;
}

int64_t TableGrower::find(int64_t key, int64_t first, int64_t end) const {
  const int64_t* keys = model_.tables.ngram_keys;
  const int64_t* found = std::lower_bound(keys + first, keys + end, key);
  return found != keys + end && *found == key ? found - keys : end;
}

}  // namespace streamfuse
