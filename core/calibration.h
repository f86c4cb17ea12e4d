// How drafts of one source came true: accepted drafts per predicted acceptance, by depth.
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

  // What to multiply the probability of a path of this depth with.
  double ratio(int64_t depth) const { return ratios_[std::min(static_cast<size_t>(depth), ratios_.size() - 1)]; }
  // The model chose these tokens after the root, whether the tree was verified or not.
  void learn(const Tree& tree, std::span<const int64_t> chosen);
  // The text may have changed: what was seen before counts no more than the next few steps.
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
