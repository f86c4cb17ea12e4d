// The progress of a long call, and the request to cancel it: see streamfuse.h.
#pragma once

#include <atomic>

#include "streamfuse_core.h"

struct sf_progress {
  std::atomic<double> fraction{0.0};
  std::atomic<bool> is_cancelled{false};
};

namespace streamfuse::native {

// Reports one part of a call, whose own progress is the range [from, to] of the whole.
class Watch {
 public:
  // `progress` may be null.
  Watch(sf_progress* progress, double from, double to) : progress_(progress), from_(from), to_(to) {}

  // Valid as long as this object; null without a progress.
  const sf_watch* get() const { return progress_ == nullptr ? nullptr : &watch_; }

 private:
  static int step(void* context, uint64_t done, uint64_t total) {
    const Watch& own = *static_cast<const Watch*>(context);
    const double share = total == 0 ? 0.0 : static_cast<double>(done) / static_cast<double>(total);
    own.progress_->fraction.store(own.from_ + share * (own.to_ - own.from_), std::memory_order_relaxed);
    return own.progress_->is_cancelled.load(std::memory_order_relaxed);
  }

  sf_progress* progress_;
  double from_, to_;
  sf_watch watch_{step, this};
};

}  // namespace streamfuse::native
