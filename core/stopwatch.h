// Splits the time of a text into phases, by the caller's clock.
#pragma once

#include <chrono>

namespace streamfuse {

// Seconds of the system's monotonic clock.
inline double monotonic_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

class Stopwatch {
 public:
  // `clock` returns seconds; null: the system's steady clock.
  Stopwatch(double (*clock)(void*), void* context) : clock_(clock != nullptr ? clock : system), context_(context) {}

  double now() const { return clock_(context_); }
  void start() { last_ = now(); }
  // Adds the milliseconds since the last lap, or since `start`, and returns them.
  double lap(double& total) {
    const double time = now(), spent = 1000.0 * (time - last_);
    last_ = time;
    total += spent;
    return spent;
  }

 private:
  static double system(void*) { return monotonic_seconds(); }

  double (*clock_)(void*);
  void* context_;
  double last_ = 0.0;
};

}  // namespace streamfuse
