// The probabilities of drafted tokens in sampled text, given the noise that sampling adds to their scores (noise.h).
// The model chooses the token with the largest sum of score and noise, so a candidate with much noise is more likely to
// be right (Gumbel coupling: Daliri, Musco, Suresh, arXiv 2408.07978). docs/contracts.md, section 8, defines it.
#pragma once

#include <cstdint>
#include <span>

#include "sample.h"

namespace streamfuse {

class Coupling {
 public:
  Coupling() = default;  // of greedy text, where drafts need no noise
  Coupling(const Sampling& sampling, int64_t vocab_size, int64_t position = 0);

  // `position`: of the children of the next draft's root.
  void begin_draft(int64_t position) { position_ = position; }
  bool active() const { return temperature_ > 0; }
  // The noise of a token after a node of this depth.
  double noise(int64_t depth, int64_t token) const { return Noise(seed_, position_ + depth, vocab_size_).of(token); }
  // Replaces the log-probabilities of the candidates after one node; `noise` has one number per candidate.
  void apply(const double* noise, std::span<double> log_probs) const;

 private:
  double temperature_ = 0.0;
  uint64_t seed_ = 0;
  int64_t vocab_size_ = 0, position_ = 0;
};

}  // namespace streamfuse
