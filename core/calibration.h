// Calibrates the probabilities of one source of drafts: accepted over predicted hits, by depth.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "tree.h"

namespace streamfuse {

class Calibration {
 public:
  // `priors` [depths or fewer]: ratios measured when the bundle was made; 1 for the depths that are missing.
  Calibration(std::span<const double> priors, int64_t depths);

  // The factor for the probability of a path of this depth.
  double ratio(int64_t depth) const { return ratios_[std::min(static_cast<size_t>(depth), ratios_.size() - 1)]; }
  // The model chose these tokens after the root, whether the tree was verified or not.
  void learn(const Tree& tree, std::span<const int64_t> chosen);
  // The text may have changed: reduces the weight of earlier observations to that of a few steps.
  void forget();

 private:
  struct Seen {
    double hits, predicted;
  };
  void update();

  std::vector<Seen> seen_;
  std::vector<double> ratios_;  // [d]: product of the ratios above depth d
};

}  // namespace streamfuse
