#include "rounding.h"

#include "calibration.h"

#include "numbers.h"

namespace streamfuse {
namespace {

constexpr double kForgetPerStep = 0.96;  // about the last 25 steps count
constexpr double kPriorWeight = 3.0;     // predicted hits that the priors weigh, and all observations after `forget`

}  // namespace

Calibration::Calibration(std::span<const double> priors, int64_t depths) {
  for (int64_t d = 0; d < depths; ++d) {
    const double prior = static_cast<size_t>(d) < priors.size() ? priors[static_cast<size_t>(d)] : 1.0;
    seen_.push_back({kPriorWeight * prior, kPriorWeight});
  }
  update();
}

void Calibration::learn(const Tree& tree, std::span<const int64_t> chosen) {
  int64_t row = 0;
  for (size_t d = 0; d < std::min(chosen.size(), seen_.size()); ++d) {
    double predicted = 0.0;
    for (int64_t other = row + 1; other < tree.size(); ++other)
      if (tree[other].parent == row) predicted += exponential(tree[other].log_prob - tree[row].log_prob);
    if (predicted <= 0.0) break;
    const bool guided = tree.is_guided(row);  // by the constraint, which says little of the source
    row = tree.child(row, chosen[d]);
    if (guided) {
      if (row == 0) break;
      continue;
    }
    seen_[d].hits = kForgetPerStep * seen_[d].hits + (row > 0);
    seen_[d].predicted = kForgetPerStep * seen_[d].predicted + std::min(predicted, 1.0);
    if (row == 0) break;
  }
  update();
}

void Calibration::forget() {
  for (Seen& seen : seen_) {
    const double factor = std::min(1.0, kPriorWeight / seen.predicted);
    seen.hits *= factor;
    seen.predicted *= factor;
  }
}

void Calibration::update() {
  ratios_.assign(1, 1.0);
  for (const Seen& seen : seen_) ratios_.push_back(ratios_.back() * (seen.hits / seen.predicted));
}

}  // namespace streamfuse
