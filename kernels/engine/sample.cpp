#include "sample.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <iterator>
#include <limits>
#include <vector>

#include "score_loops.h"

namespace {

using streamfuse::Summit, streamfuse::Loops, streamfuse::kLanes;

constexpr int64_t kBlock = 64;  // scores that are looked at together where a few are wanted
constexpr int64_t kUndecided = -1;
// Sums of weights agree with the reference's to better than this share of the total: at most as many additions in a row
// as a vocabulary has tokens, and exponentials, each within a few units of 2^-53. What lies nearer to an edge is not
// decided here.
constexpr double kDoubt = 1e-11;

using Lanes = std::array<double, kLanes>;

struct Token {
  int64_t id;
  double score, weight;
};

// Best first, equal ones by the smaller id.
bool before(const Token& a, const Token& b) { return a.score != b.score ? a.score > b.score : a.id < b.id; }

// One draw. Number is the type of the scores before temperature.
template <class Number>
class Draw {
 public:
  Draw(sf_sampling& sampling, const Number* scores) : s_(sampling), scores_(scores) {}

  int64_t run() {
    const Summit summit = loops().summit(scores_, s_.vocab_size);
    top_ = summit.score;
    if (summit.unordered || !std::isfinite(top_)) return kUndecided;
    if (s_.top_k > 0 && s_.top_k < s_.vocab_size) {
      keep_largest();
    } else if (s_.top_p < 1 || s_.min_p > 0) {
      if (!keep_heavy()) return kUndecided;
    } else {
      return draw(lanes_of_all(), s_.vocab_size, [this](int64_t id) { return weight_of(score_of(id)); });
    }
    if (!narrow()) return kUndecided;
    const Lanes lanes = lanes_of_kept();
    const int64_t place = draw(lanes, size(), [this](int64_t m) { return kept_[static_cast<size_t>(m)].weight; });
    return place < 0 ? kUndecided : kept_[static_cast<size_t>(place)].id;
  }

 private:
  static double weight_of(double score) { return streamfuse::exponential<streamfuse::kFusedAnywhere>(score); }
  double score_of(int64_t id) const { return (static_cast<double>(scores_[id]) - top_) / s_.temperature; }
  int64_t size() const { return static_cast<int64_t>(kept_.size()); }

  // Top-k. As many blocks reach the k-th largest block's best, so no smaller score is needed.
  void keep_largest() {
    const int64_t blocks = s_.vocab_size / kBlock, k = s_.top_k;
    double floor = -std::numeric_limits<double>::infinity();
    if (k <= blocks) {
      std::vector<double> bests(static_cast<size_t>(blocks));
      for (int64_t block = 0; block < blocks; ++block) {
        bests[static_cast<size_t>(block)] = *std::max_element(scores_ + block * kBlock, scores_ + (block + 1) * kBlock);
      }
      std::nth_element(bests.begin(), bests.begin() + (k - 1), bests.end(), std::greater<>());
      floor = bests[static_cast<size_t>(k - 1)];
    }
    keep_from(floor);
    std::nth_element(kept_.begin(), kept_.begin() + (k - 1), kept_.end(), before);
    kept_.resize(static_cast<size_t>(k));
    std::sort(kept_.begin(), kept_.end(), [](const Token& a, const Token& b) { return a.id < b.id; });
    for (Token& token : kept_) token.weight = weight_of(token.score);
  }

  // What top-p and min-p may keep of the whole vocabulary: tokens that are too light for the one or the other go.
  bool keep_heavy() {
    double least = s_.min_p;
    if (s_.top_p < 1) {
      total_ = total_of(lanes_of_all(), s_.vocab_size);
      if (!std::isfinite(total_)) return false;
      // Those below, all together, weigh half of what top-p leaves out.
      least = 0.5 * (1 - s_.top_p) * total_ / static_cast<double>(s_.vocab_size);
    }
    keep_from(top_ + s_.temperature * (std::log(least) - 1e-6));  // a little too many: weights decide below
    for (Token& token : kept_) token.weight = weight_of(token.score);
    return true;
  }

  // All tokens whose score before temperature is at least `floor`, ascending, without weights.
  void keep_from(double floor) {
    kept_.clear();
    for (int64_t id = 0; id < s_.vocab_size; ++id) {
      if (static_cast<double>(scores_[id]) >= floor) kept_.push_back({id, score_of(id), 0.0});
    }
  }

  // Top-p and min-p on what is kept. False where rounding would decide.
  bool narrow() {
    if (s_.top_p < 1) {
      if (total_ == 0.0) total_ = total_of(lanes_of_kept(), size());  // of what top-k left
      Token last;
      if (!find_last(last)) return false;
      std::erase_if(kept_, [&last](const Token& token) { return before(last, token); });
    }
    if (s_.min_p > 0) {
      for (const Token& token : kept_) {
        if (std::abs(token.weight - s_.min_p) < kDoubt) return false;
      }
      std::erase_if(kept_, [this](const Token& token) { return token.weight < s_.min_p; });
    }
    return true;
  }

  // The token at which the weights, added best first, reach top-p. Only those of its own range of scores are sorted.
  bool find_last(Token& last) const {
    constexpr int64_t kRanges = 512;
    const auto range_of = [](const Token& token) {
      return static_cast<size_t>(std::min(-16 * token.score, kRanges - 1.0));
    };
    std::array<double, kRanges> weights{};
    for (const Token& token : kept_) weights[range_of(token)] += token.weight;
    const double goal = s_.top_p * total_, doubt = kDoubt * total_;
    double sum = 0.0;
    size_t range = 0;
    for (; range + 1 < kRanges && sum + weights[range] < goal - doubt; ++range) sum += weights[range];
    std::vector<Token> own;
    std::copy_if(kept_.begin(), kept_.end(), std::back_inserter(own),
                 [&](const Token& token) { return range_of(token) == range; });
    std::sort(own.begin(), own.end(), before);
    for (const Token& token : own) {
      sum += token.weight;
      if (std::abs(sum - goal) < doubt) return false;
      last = token;
      if (sum > goal) return true;
    }
    return false;
  }

  static const Loops<Number>& loops() {
    static const Loops<Number> found = streamfuse::best_loops<Number>();
    return found;
  }

  Lanes lanes_of_all() const {
    Lanes lanes{};
    loops().weigh(scores_, s_.vocab_size, top_, s_.temperature, lanes.data());
    return lanes;
  }

  Lanes lanes_of_kept() const {
    Lanes lanes{};
    for (size_t m = 0; m < kept_.size(); ++m) lanes[m % kLanes] += kept_[m].weight;
    return lanes;
  }

  static double total_of(const Lanes& lanes, int64_t count) {
    double total = 0.0;
    for (int64_t lane = 0; lane < std::min(kLanes, count); ++lane) total += lanes[static_cast<size_t>(lane)];
    return total;
  }

  // Which of `count` weights the target falls on; kUndecided where it lies too near an edge.
  template <class WeightAt>
  int64_t draw(const Lanes& lanes, int64_t count, WeightAt weight_at) {
    const double total = total_of(lanes, count), target = s_.uniform * total;
    const int64_t used = std::min(kLanes, count);
    double start = 0.0;  // where the lane begins
    int64_t lane = 0;
    for (; lane < used && !(start + lanes[static_cast<size_t>(lane)] > target); ++lane) {
      start += lanes[static_cast<size_t>(lane)];
    }
    for (int64_t index = lane; index < count; index += kLanes) {
      const double end = start + weight_at(index);
      if (end > target) {
        const double below = index == 0 ? HUGE_VAL : target - start;
        const double above = index == count - 1 || last(index, lane, used, count) ? HUGE_VAL : end - target;
        s_.distance = std::min(below, above) / total;
        return s_.distance < kDoubt ? kUndecided : index;
      }
      start = end;
    }
    return kUndecided;
  }

  // Whether nothing lies after this place: it ends its lane, and its lane is the last.
  static bool last(int64_t index, int64_t lane, int64_t used, int64_t count) {
    return lane == used - 1 && index + kLanes >= count;
  }

  sf_sampling& s_;
  const Number* scores_;
  double top_ = 0.0;    // the best score before temperature
  double total_ = 0.0;  // of what top-p is a share of
  std::vector<Token> kept_;
};

}  // namespace

extern "C" __attribute__((visibility("default"))) int64_t sf_sample(sf_sampling* sampling) {
  if (sampling->vocab_size < 1 || !(sampling->temperature > 0)) return kUndecided;
  if (sampling->scores != nullptr) return Draw<double>(*sampling, sampling->scores).run();
  return Draw<float>(*sampling, sampling->logits).run();
}
