#include "rounding.h"

#include "accept.h"

#include <algorithm>

#include "error.h"

namespace streamfuse {
namespace {

// Index of a row among those that the pass kept; -1: it was pruned. A pass without drafts keeps its only row.
int64_t place_of(const sf_results& results, int64_t row) {
  if (results.kept == nullptr) return row == 0 ? 0 : -1;
  const int64_t* end = results.kept + results.survivors;
  const int64_t* found = std::find(results.kept, end, row);
  return found == end ? -1 : found - results.kept;
}

}  // namespace

void Path::reserve(size_t size) {
  tokens.reserve(size);
  rows.reserve(size);
  near_ties.reserve(size);
  log_probs.reserve(size);
}

Acceptor::Acceptor(int64_t vocab_size, size_t history) : vocab_size_(vocab_size), sampler_(vocab_size) {
  history_.reserve(history);
}

void Acceptor::accept(const Tree& tree, int64_t nodes, const sf_results& results, const Generation& generation,
                      Constraint* constraint, const std::vector<int64_t>& text, int64_t room, Statistics& statistics,
                      Stopwatch& watch, Path& path) {
  const bool samples = generation.sampling.needs_logits() || constraint != nullptr;
  if (samples) history_ = text;
  path.complete = false;
  path.tokens.clear();
  path.rows.clear();
  path.near_ties.clear();
  path.log_probs.clear();
  path.top.clear();
  int64_t row = 0, place = nodes == 1 ? 0 : place_of(results, 0);
  while (true) {
    int64_t token;
    bool ends, taken = false;
    try {
      sampler_.near_tie = false;
      token = choose(results, place, generation.sampling, constraint, statistics, watch);
      if (generation.log_probs) add_log_probs(results, place, token, generation.top_log_probs, path, statistics, watch);
      ends = generation.ends_text(token);
      if (constraint != nullptr && !ends) {
        constraint->accept(token);
        taken = true;
        ends = path.complete = constraint->must_end();
      }
    } catch (const Failure&) {
      if (path.tokens.empty()) throw;
      if (taken) constraint->rollback(1);  // the next pass chooses this token again
      return;
    }
    path.rows.push_back(static_cast<int32_t>(row));
    path.tokens.push_back(token);
    path.near_ties.push_back(sampler_.near_tie);
    path.survivor = place;
    int64_t child = 0, rank = -1, offers = 0;
    for (int64_t other = row + 1; other < nodes; ++other) {
      if (tree[other].parent != row) continue;
      if (tree[other].token == token && child == 0) {
        child = other;
        rank = offers;
      }
      ++offers;
    }
    const int64_t next = child > 0 ? place_of(results, child) : -1;
    statistics.count_rank(offers, next < 0 ? -1 : rank);
    if (next < 0 || ends || static_cast<int64_t>(path.tokens.size()) == room) return;
    row = child;
    place = next;
    if (samples) history_.push_back(token);
  }
}

// The token that follows a survivor of the pass; with logits, after `history_`. Under a constraint the engine's best
// token is asked for first, because a mask of the vocabulary costs more.
int64_t Acceptor::choose(const sf_results& results, int64_t survivor, const Sampling& sampling, Constraint* constraint,
                         Statistics& statistics, Stopwatch& watch) {
  const bool restricted = constraint != nullptr && constraint->restricts(), greedy = !sampling.needs_logits();
  const int64_t best = greedy ? results.best[survivor] : 0;
  if (best < 0 || best >= vocab_size_)
    throw Failure(SF_EXECUTION, "the engine's best token lies outside the vocabulary");
  if (greedy && !restricted) return best;
  watch.lap(statistics.ms[kAccept]);
  const uint32_t* allowed = nullptr;
  if (restricted) {
    const bool takes_best = greedy && constraint->allows(best);
    if (!takes_best) allowed = constraint->mask();
    statistics.mask_ms += watch.lap(statistics.ms[kAccept]);
    if (takes_best) return best;
  }
  const int64_t token = sampler_.choose(sampling, results.logits + survivor * vocab_size_, history_,
                                        static_cast<int64_t>(history_.size()), allowed);
  watch.lap(statistics.ms[kSample]);
  return token;
}

void Acceptor::add_log_probs(const sf_results& results, int64_t survivor, int64_t token, int64_t top, Path& path,
                             Statistics& statistics, Stopwatch& watch) {
  watch.lap(statistics.ms[kAccept]);
  path.log_probs.push_back(sampler_.log_prob(results.logits + survivor * vocab_size_, token, top, path.top));
  watch.lap(statistics.ms[kSample]);
}

}  // namespace streamfuse
