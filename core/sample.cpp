#include "rounding.h"

#include "sample.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <string>

#include "error.h"
#include "numbers.h"
#include "score_loops.h"
#include "streamfuse_core.h"

namespace streamfuse {
namespace {

constexpr double kNearLogit = 1e-3;
constexpr size_t kFirstSorted = 64;  // tokens sorted first for top-p; four times as many if they do not reach it

using Lanes = std::array<double, kLanes>;

template <class Number>
const Loops<Number>& loops() {
  static const Loops<Number> found = best_loops<Number>();
  return found;
}

double total_of(const double* lanes, int64_t count) {
  double total = 0.0;
  for (int64_t lane = 0; lane < std::min(kLanes, count); ++lane) total += lanes[lane];
  return total;
}

void demand_finite(double top) {
  if (!std::isfinite(top))
    throw Failure(SF_EXECUTION, "the model's best logit is not a finite number: the graph or its weights are damaged");
}

}  // namespace

// The largest score with noise so far, and the second largest unless it is farther away than a near tie.
struct Sampler::Race {
  double margin;  // scores with noise this close to the best are near ties
  int64_t token = -1;
  double best = -HUGE_VAL, second = -HUGE_VAL;

  bool is_near(double value) const { return value >= best - margin; }
  void enter(const Noise& noise, const Noise::Block& block, int64_t id, double score) {
    if (!is_near(score + block.largest)) return;
    const double value = score + noise.of(id, block);
    if (value > best || (value == best && id < token)) {
      second = best;
      best = value;
      token = id;
    } else {
      second = std::max(second, value);
    }
  }
};

Sampler::Sampler(int64_t vocab_size) : vocab_size_(vocab_size) {}

// Best first, ties by the smaller id.
bool Sampler::before(const Token& a, const Token& b) { return a.score != b.score ? a.score > b.score : a.id < b.id; }

int64_t Sampler::choose(const Sampling& sampling, const float* logits, std::span<const int64_t> history,
                        int64_t position, const uint32_t* allowed) {
  const bool penalises = sampling.penalty != 1.0 && !history.empty(), changes = penalises || allowed != nullptr;
  if (sampling.temperature == 0.0 && !penalises && allowed != nullptr) return greedy_among(logits, allowed);
  if (changes) changed_.assign(logits, logits + vocab_size_);
  if (penalises) penalise(sampling, history);
  if (allowed != nullptr) forbid(allowed);
  if (sampling.temperature == 0.0) return changes ? greedy(changed_.data()) : greedy(logits);
  const Noise noise(sampling.seed, position, vocab_size_);
  return changes ? draw(sampling, changed_.data(), noise) : draw(sampling, logits, noise);
}

float Sampler::log_prob(const float* logits, int64_t token, int64_t top, std::vector<sf_top_token>& found) {
  const double best = find_top(logits);
  demand_finite(best);
  Lanes lanes{};
  loops<float>().weigh(logits, vocab_size_, best, 1.0, lanes.data());
  const double total = logarithm(total_of(lanes.data(), vocab_size_));
  const auto of = [&](int64_t id) { return static_cast<float>(static_cast<double>(logits[id]) - best - total); };
  best_.clear();
  const size_t most = static_cast<size_t>(std::min(top, vocab_size_));
  for (int64_t id = 0; most > 0 && id < vocab_size_; ++id) {
    if (best_.size() == most && !(logits[id] > logits[best_.back()])) continue;
    if (best_.size() == most) best_.pop_back();
    const auto place =
        std::find_if(best_.begin(), best_.end(), [&](int64_t other) { return logits[id] > logits[other]; });
    best_.insert(place, id);
  }
  for (const int64_t id : best_) found.push_back({id, of(id), 0});
  return of(token);
}

void Sampler::forbid(const uint32_t* allowed) {
  for (int64_t id = 0; id < vocab_size_; ++id)
    if ((allowed[id / 32] >> (id % 32) & 1u) == 0) changed_[static_cast<size_t>(id)] = -HUGE_VAL;
}

// The rule of CTRL (Keskar et al., 2019) as Hugging Face applies it.
void Sampler::penalise(const Sampling& sampling, std::span<const int64_t> history) {
  seen_.resize(static_cast<size_t>(vocab_size_), 0);
  for (const int64_t token : history) {
    const size_t id = static_cast<size_t>(token);
    if (seen_[id]) continue;
    seen_[id] = 1;
    double& score = changed_[id];
    score = score < 0 ? score * sampling.penalty : score / sampling.penalty;
  }
  for (const int64_t token : history) seen_[static_cast<size_t>(token)] = 0;
}

// The largest score, and in `peaks_` that of each block. NaN if one is NaN.
template <class Number>
double Sampler::find_top(const Number* scores) {
  peaks_.resize(static_cast<size_t>(blocks_of(vocab_size_)));
  const bool unordered = loops<Number>().peaks(scores, vocab_size_, peaks_.data());
  return unordered ? std::numeric_limits<double>::quiet_NaN() : *std::max_element(peaks_.begin(), peaks_.end());
}

template <class Number>
int64_t Sampler::greedy(const Number* scores) {
  const double top = find_top(scores);
  int64_t best = -1;
  double second = -HUGE_VAL;
  for (int64_t id = 0; id < vocab_size_; ++id) {
    const double score = static_cast<double>(scores[id]);
    if (best < 0 && score == top)
      best = id;
    else if (score > second)
      second = score;
  }
  return settle(best, top, second);
}

// The same as `greedy` after `forbid`, but reads only the logits of allowed tokens, which are often few.
int64_t Sampler::greedy_among(const float* logits, const uint32_t* allowed) {
  int64_t best = -1;
  double top = -HUGE_VAL, second = -HUGE_VAL;
  for (int64_t word = 0; word <= (vocab_size_ - 1) / 32; ++word) {
    for (uint32_t bits = allowed[word]; bits != 0; bits &= bits - 1) {
      const int64_t id = 32 * word + std::countr_zero(bits);
      const double score = static_cast<double>(logits[id]);
      if (std::isnan(score)) demand_finite(score);
      if (score > top) {
        second = top;
        top = score;
        best = id;
      } else if (score > second) {
        second = score;
      }
    }
  }
  return settle(best, top, second);
}

// The best token of a row, with the scores of the best and the second.
int64_t Sampler::settle(int64_t best, double top, double second) {
  demand_finite(top);
  near_tie = top - second <= kNearLogit;
  return best;
}

template <class Number>
int64_t Sampler::draw(const Sampling& sampling, const Number* scores, const Noise& noise) {
  const double top = find_top(scores);
  demand_finite(top);
  const bool few = sampling.top_k > 0 && sampling.top_k < vocab_size_;
  if (!few && sampling.top_p == 1.0 && sampling.min_p == 0.0) return race_of_all(sampling, scores, top, noise);
  Lanes lanes{};
  double total = 0.0, least = sampling.min_p;
  if (few) {
    keep_from(sampling, scores, top, -std::numeric_limits<double>::infinity());
    std::nth_element(kept_.begin(), kept_.begin() + (sampling.top_k - 1), kept_.end(), before);
    kept_.resize(static_cast<size_t>(sampling.top_k));
    std::sort(kept_.begin(), kept_.end(), [](const Token& a, const Token& b) { return a.id < b.id; });
  } else {
    if (sampling.top_p < 1.0) {
      loops<Number>().weigh(scores, vocab_size_, top, sampling.temperature, lanes.data());
      total = total_of(lanes.data(), vocab_size_);
      // All tokens below it together have at most half the weight that top-p drops, so they are hardly ever needed.
      least = 0.5 * (1 - sampling.top_p) * total / static_cast<double>(vocab_size_);
    }
    keep_from(sampling, scores, top, top + sampling.temperature * (std::log(least) - 1e-6));
  }
  for (Token& token : kept_) token.weight = exponential(token.score);
  if (sampling.top_p < 1.0) {
    if (few) {
      lanes.fill(0.0);
      for (size_t m = 0; m < kept_.size(); ++m) lanes[m % kLanes] += kept_[m].weight;
      total = total_of(lanes.data(), static_cast<int64_t>(kept_.size()));
    }
    if (!narrow_to(sampling.top_p * total) && !few) {  // because of rounding the light ones are needed after all
      keep_from(sampling, scores, top, -std::numeric_limits<double>::infinity());
      for (Token& token : kept_) token.weight = exponential(token.score);
      narrow_to(sampling.top_p * total);
    }
  }
  if (sampling.min_p > 0.0) std::erase_if(kept_, [&](const Token& token) { return token.weight < sampling.min_p; });
  return race_of_kept(sampling, noise);
}

// Without filters: a block's largest score and noise bound those of its tokens, so most blocks need no more.
template <class Number>
int64_t Sampler::race_of_all(const Sampling& sampling, const Number* scores, double top, const Noise& noise) {
  blocks_.resize(peaks_.size());
  loops<Number>().blocks(noise, static_cast<int64_t>(blocks_.size()), blocks_.data());
  const auto score_of = [&](double logit) { return (logit - top) / sampling.temperature; };
  for (size_t b = 0; b < peaks_.size(); ++b) peaks_[b] = score_of(peaks_[b]) + blocks_[b].largest;
  Race race{kNearLogit / sampling.temperature};
  const auto enter = [&](size_t b) {
    const int64_t start = static_cast<int64_t>(b) * kBlock;
    for (int64_t id = start; id < std::min(start + kBlock, vocab_size_); ++id)
      race.enter(noise, blocks_[b], id, score_of(static_cast<double>(scores[id])));
  };
  const size_t first = static_cast<size_t>(std::max_element(peaks_.begin(), peaks_.end()) - peaks_.begin());
  enter(first);
  for (size_t b = 0; b < peaks_.size(); ++b)
    if (b != first && race.is_near(peaks_[b])) enter(b);
  near_tie = race.is_near(race.second);
  return race.token;
}

int64_t Sampler::race_of_kept(const Sampling& sampling, const Noise& noise) {
  Race race{kNearLogit / sampling.temperature};
  Noise::Block block{};
  int64_t at = -1;
  for (const Token& token : kept_) {  // by id
    if (token.id / kBlock != at) {
      at = token.id / kBlock;
      block = noise.block(at);
    }
    race.enter(noise, block, token.id, token.score);
  }
  near_tie = race.is_near(race.second);
  return race.token;
}

// All tokens whose score before temperature is at least `floor`, ascending, without weights.
template <class Number>
void Sampler::keep_from(const Sampling& sampling, const Number* scores, double top, double floor) {
  kept_.clear();
  kept_.reserve(static_cast<size_t>(vocab_size_));  // later calls do not allocate
  for (int64_t id = 0; id < vocab_size_; ++id) {
    const double score = static_cast<double>(scores[id]);
    if (score >= floor) kept_.push_back({id, (score - top) / sampling.temperature, 0.0});
  }
}

// Top-p: keeps the shortest best-first prefix with a weight of at least `goal`, in order of ids. False, and keeps all,
// if the weight of all is smaller.
bool Sampler::narrow_to(double goal) {
  const auto by_id = [](const Token& a, const Token& b) { return a.id < b.id; };
  double sum = 0.0;
  size_t sorted = 0, upto = kFirstSorted;
  while (sorted < kept_.size()) {
    upto = std::min(upto, kept_.size());
    std::partial_sort(kept_.begin() + static_cast<ptrdiff_t>(sorted), kept_.begin() + static_cast<ptrdiff_t>(upto),
                      kept_.end(), before);
    for (; sorted < upto; ++sorted) {
      sum += kept_[sorted].weight;
      if (sum >= goal) {
        kept_.resize(sorted + 1);
        std::sort(kept_.begin(), kept_.end(), by_id);
        return true;
      }
    }
    upto *= 4;
  }
  std::sort(kept_.begin(), kept_.end(), by_id);
  return false;
}

}  // namespace streamfuse
