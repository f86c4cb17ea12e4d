#include "grow.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

namespace {

struct Candidate {
  double log_prob;
  int64_t depth, parent, rank, token;
};

// Best first; equal ones by depth, by the parent's row, by rank.
bool before(const Candidate& a, const Candidate& b) {
  if (a.log_prob != b.log_prob) return a.log_prob > b.log_prob;
  if (a.depth != b.depth) return a.depth < b.depth;
  if (a.parent != b.parent) return a.parent < b.parent;
  return a.rank < b.rank;
}

float from_half(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
  const uint32_t exponent = (bits >> 10) & 31u, fraction = bits & 1023u;
  if (exponent == 0) {  // zero and subnormal: a multiple of 2^-24
    const float value = static_cast<float>(fraction) * 5.9604644775390625e-8f;
    return sign ? -value : value;
  }
  const uint32_t wide = sign | (exponent == 31 ? 0x7f800000u : (exponent + 112) << 23) | (fraction << 13);
  float value;
  std::memcpy(&value, &wide, sizeof value);
  return value;
}

void mark_ancestors(const int64_t* parents, uint8_t* ancestors, int64_t rows) {
  std::memset(ancestors, 0, static_cast<size_t>(rows * rows));
  for (int64_t row = 0; row < rows; ++row) {
    uint8_t* own = ancestors + row * rows;
    if (row > 0) std::memcpy(own, ancestors + parents[row] * rows, static_cast<size_t>(rows));
    own[row] = 1;
  }
}

class Growth {
 public:
  explicit Growth(sf_growth& growth) : g_(growth), gated_(static_cast<size_t>(has_term() ? growth.rank : 0)) {
    scores_.resize(static_cast<size_t>(g_.top_k));
    open_.reserve(static_cast<size_t>(g_.width));
  }

  int run() {
    const int64_t levels = std::min(g_.depth, g_.streams);
    if (has_term() && !find_slots(levels)) return -1;
    g_.tokens[0] = g_.root;
    g_.parents[0] = -1;
    g_.depths[0] = 0;
    g_.log_probs[0] = 0.0;
    int64_t rows = 1;
    if (rows < g_.width && levels > 0) offer(0, g_.width - rows);
    while (rows < g_.width && !open_.empty()) {
      const Candidate best = open_.front();
      open_.erase(open_.begin());
      g_.tokens[rows] = best.token;
      g_.parents[rows] = best.parent;
      g_.depths[rows] = best.depth;
      g_.log_probs[rows] = best.log_prob;
      const int64_t row = rows++;
      if (rows < g_.width && best.depth < levels) offer(row, g_.width - rows);
    }
    mark_ancestors(g_.parents, g_.ancestors, rows);
    return static_cast<int>(rows);
  }

 private:
  bool has_term() const { return g_.parent_left != nullptr && g_.rank > 0; }

  // After a pass over all weights nothing of the tables is in a cache: ask for all rows that may be needed at once,
  // instead of waiting for one after the other.
  bool find_slots(int64_t levels) {
    const int64_t count = std::max<int64_t>(levels, 0) * g_.top_k;
    slots_.resize(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i) {
      const int64_t id = g_.stream_ids[i];
      if (id < 0 || id >= g_.vocab_size) return false;
      __builtin_prefetch(g_.slot_of + id);
    }
    for (int64_t i = 0; i < count; ++i) {
      const int64_t id = g_.stream_ids[i];
      const int32_t slot = g_.slot_of[id];
      if (slot < 0) return false;
      slots_[static_cast<size_t>(i)] = slot;
      for (int64_t at = 0; at < g_.rank; at += 16) __builtin_prefetch(g_.parent_right + slot * g_.rank + at);
      for (int64_t at = 0; at < g_.rank; at += 32) __builtin_prefetch(g_.parent_left + id * g_.rank + at);
    }
    return true;
  }

  // The children of a row that have a place among the best `room` candidates that are still open.
  void offer(int64_t row, int64_t room) {
    const int64_t level = g_.depths[row];
    const int64_t* ids = g_.stream_ids + level * g_.top_k;
    score(level, g_.tokens[row]);
    for (int64_t rank = 0; rank < g_.top_k; ++rank) {
      const double conditional = std::min(scores_[static_cast<size_t>(rank)], 0.0);
      const Candidate child{g_.log_probs[row] + conditional, level + 1, row, rank, ids[rank]};
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
  void score(int64_t level, int64_t parent) {
    const float* own = g_.stream_log_probs + level * g_.top_k;
    if (!has_term()) {
      for (int64_t rank = 0; rank < g_.top_k; ++rank) scores_[static_cast<size_t>(rank)] = own[rank];
      return;
    }
    const uint16_t* left = g_.parent_left + parent * g_.rank;
    const float* gate = g_.gate + level * g_.rank;
    for (int64_t i = 0; i < g_.rank; ++i) gated_[static_cast<size_t>(i)] = from_half(left[i]) * gate[i];
    double mass = 0.0, stated = 0.0;
    for (int64_t rank = 0; rank < g_.top_k; ++rank) {
      const float* right = g_.parent_right + slots_[static_cast<size_t>(level * g_.top_k + rank)] * g_.rank;
      float term[8] = {0, 0, 0, 0, 0, 0, 0, 0};  // eight sums at once: a compiler makes one vector of them
      int64_t i = 0;
      for (; i + 8 <= g_.rank; i += 8) {
        for (int64_t lane = 0; lane < 8; ++lane) term[lane] += gated_[static_cast<size_t>(i + lane)] * right[i + lane];
      }
      for (; i < g_.rank; ++i) term[0] += gated_[static_cast<size_t>(i)] * right[i];
      const float sum = ((term[0] + term[4]) + (term[1] + term[5])) + ((term[2] + term[6]) + (term[3] + term[7]));
      const double score = static_cast<double>(own[rank]) + static_cast<double>(sum);
      scores_[static_cast<size_t>(rank)] = score;
      mass += std::exp(score);
      stated += std::exp(static_cast<double>(own[rank]));
    }
    const double norm = std::log(mass + std::max(0.0, 1.0 - stated));
    for (double& score : scores_) score -= norm;
  }

  sf_growth& g_;
  std::vector<float> gated_;
  std::vector<int32_t> slots_;  // of each candidate of each stream
  std::vector<double> scores_;
  std::vector<Candidate> open_;
};

// Every row waits with its best child that was not taken yet, so the heap is never larger than the tree.
class NgramGrowth {
 public:
  explicit NgramGrowth(sf_ngram_growth& growth) : g_(growth) {
    children_.reserve(static_cast<size_t>(g_.width));
    open_.reserve(2 * static_cast<size_t>(g_.width));
  }

  int run() {
    int64_t rows = 0;
    take(rows++, Candidate{0.0, 0, -1, 0, g_.root}, g_.before);
    while (rows < g_.width && !open_.empty()) {
      std::pop_heap(open_.begin(), open_.end(), after);
      const Candidate best = open_.back().candidate;
      open_.pop_back();
      take(rows, best, g_.tokens[best.parent]);
      offer(best.parent, best.rank + 1);
      offer(rows++, 0);
    }
    mark_ancestors(g_.parents, g_.ancestors, rows);
    return static_cast<int>(rows);
  }

 private:
  struct Span {
    int32_t begin, end;
  };
  struct Open {
    Candidate candidate;
    int64_t order;
  };

  // The heap's order: best first, equal ones as they were found.
  static bool after(const Open& a, const Open& b) {
    if (a.candidate.log_prob != b.candidate.log_prob) return a.candidate.log_prob < b.candidate.log_prob;
    return a.order > b.order;
  }

  void take(int64_t row, const Candidate& one, int64_t before) {
    g_.tokens[row] = one.token;
    g_.parents[row] = one.parent;
    g_.depths[row] = one.depth;
    g_.tree_log_probs[row] = one.log_prob;
    children_.push_back(one.depth < g_.depth ? entries(before, one.token) : Span{0, 0});
    if (row == 0) offer(0, 0);
  }

  void offer(int64_t parent, int64_t rank) {
    const Span span = children_[static_cast<size_t>(parent)];
    const int64_t at = span.begin + rank;
    if (at >= span.end) return;
    const double path = g_.tree_log_probs[parent] + static_cast<double>(g_.log_probs[at]);
    if (!(path > g_.least)) return;
    open_.push_back({Candidate{path, g_.depths[parent] + 1, parent, rank, g_.ids[at]}, order_++});
    std::push_heap(open_.begin(), open_.end(), after);
  }

  // Of both tokens, else of the last one; the contexts of one last token lie together, that of the token alone first.
  Span entries(int64_t before, int64_t token) const {
    const int64_t* begin = g_.keys + g_.first[token];
    const int64_t* end = g_.keys + g_.first[token + 1];
    const int64_t alone = token * (g_.vocab_size + 1), key = alone + before + 1;
    const int64_t* found = std::lower_bound(begin, end, key);
    if (found == end || *found != key) found = begin;
    if (found == end || (*found != key && *found != alone)) return {0, 0};
    const int64_t context = found - g_.keys;
    return {g_.starts[context], g_.starts[context + 1]};
  }

  sf_ngram_growth& g_;
  std::vector<Span> children_;
  std::vector<Open> open_;
  int64_t order_ = 0;
};

bool in_vocabulary(const sf_ngram_growth& growth) {
  return growth.root >= 0 && growth.root < growth.vocab_size && growth.before >= -1 &&
         growth.before < growth.vocab_size;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) int sf_grow_ngrams(sf_ngram_growth* growth) {
  if (growth->width < 1 || !in_vocabulary(*growth)) return -2;
  return NgramGrowth(*growth).run();
}

extern "C" __attribute__((visibility("default"))) int sf_grow(sf_growth* growth) {
  if (growth->width < 1 || growth->streams < 0 || growth->top_k < 0) return -2;
  return Growth(*growth).run();
}
