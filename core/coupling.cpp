#include "rounding.h"

#include "coupling.h"

#include <algorithm>

#include "numbers.h"

namespace streamfuse {
namespace {

// Fitted to texts that SmolLM2-135M sampled at temperatures 0.7 and 1, for all sources of drafts (LOG.md).
constexpr double kDoubt = 0.5;            // by how much candidates differ from the model, in temperatures
constexpr double kOtherTokens = 1.75;     // how much the best noise of the other tokens adds, per squared temperature
constexpr double kMostTemperature = 4.0;  // above it drafts are useless anyway
constexpr double kLeastRest = 1e-9;

}  // namespace

Coupling::Coupling(const Sampling& sampling, int64_t vocab_size, int64_t position)
    : temperature_(std::min(sampling.temperature, kMostTemperature)),
      seed_(sampling.seed),
      vocab_size_(vocab_size),
      position_(position) {}

void Coupling::apply(const double* noise, std::span<double> log_probs) const {
  const double scale = 1.0 / (1.0 + kDoubt * temperature_);
  double stated = 0.0;
  for (double& log_prob : log_probs) {
    log_prob = std::min(log_prob, 0.0);
    stated += exponential(log_prob);
  }
  const double rest = std::max(1.0 - stated, kLeastRest);
  double total = exponential(logarithm(rest) * scale + kOtherTokens * temperature_ * temperature_);
  for (double& log_prob : log_probs) {
    log_prob = (log_prob + temperature_ * *noise++) * scale;
    total += exponential(log_prob);
  }
  const double norm = logarithm(total);
  for (double& log_prob : log_probs) log_prob = std::min(log_prob - norm, 0.0);
}

}  // namespace streamfuse
