// From a row of logits to a token: the one with the largest logit, or with the largest sum of logit / temperature and
// Gumbel noise, which is a sample from softmax(logits / temperature). tests/traces/README.md specifies it bit for bit;
// runtime/reference/sampling.py is the same in numpy.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "noise.h"
#include "streamfuse_core.h"

namespace streamfuse {

struct Sampling {
  double temperature = 0.0;  // 0: greedy
  int64_t top_k = 0;
  double top_p = 1.0, min_p = 0.0, penalty = 1.0;
  uint64_t seed = 0;
  // Greedy without a penalty is the engine's own best token; everything else needs the distribution.
  bool needs_logits() const { return temperature > 0 || penalty != 1.0; }
};

class Sampler {
 public:
  explicit Sampler(int64_t vocab_size);

  // The token at `position` from logits [vocab_size] and all tokens before it. `allowed` is one bit per token, null if
  // all are; the others have no probability. Throws Failure(SF_EXECUTION) if the best logit is not finite.
  int64_t choose(const Sampling& sampling, const float* logits, std::span<const int64_t> history, int64_t position,
                 const uint32_t* allowed = nullptr);

  // The natural logarithm of softmax(logits)[token], logits [vocab_size], and the `top` most probable tokens with
  // theirs, best first, ties by the smaller id, appended to `found`. Throws like `choose`.
  float log_prob(const float* logits, int64_t token, int64_t top, std::vector<sf_top_token>& found);

  bool near_tie = false;  // whether another engine's rounding might change the last choice

 private:
  struct Token {
    int64_t id;
    double score, weight;
  };
  struct Race;
  static bool before(const Token& a, const Token& b);
  void penalise(const Sampling& sampling, std::span<const int64_t> history);
  void forbid(const uint32_t* allowed);
  template <class Number>
  int64_t greedy(const Number* scores);
  int64_t greedy_among(const float* logits, const uint32_t* allowed);
  int64_t settle(int64_t best, double top, double second);
  template <class Number>
  double find_top(const Number* scores);
  template <class Number>
  int64_t draw(const Sampling& sampling, const Number* scores, const Noise& noise);
  template <class Number>
  int64_t race_of_all(const Sampling& sampling, const Number* scores, double top, const Noise& noise);
  int64_t race_of_kept(const Sampling& sampling, const Noise& noise);
  template <class Number>
  void keep_from(const Sampling& sampling, const Number* scores, double top, double floor);
  bool narrow_to(double goal);

  int64_t vocab_size_;
  std::vector<double> changed_;  // logits under a penalty or a constraint
  std::vector<uint8_t> seen_;    // tokens of the history, while their scores are changed
  std::vector<double> peaks_;    // the largest score of each block of tokens
  std::vector<Noise::Block> blocks_;
  std::vector<Token> kept_;
  std::vector<int64_t> best_;  // the most probable tokens so far, best first
};

}  // namespace streamfuse
