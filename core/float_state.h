// Rounding mode and handling of denormals belong to the calling thread: a program may flush denormals to zero or change
// the rounding mode, and a new thread inherits this state. Results must not depend on it, so worker threads use IEEE
// 754's defaults, and a calling thread uses them during a call of a C interface (guard.h) and during a pass.
#pragma once

#include <cstdint>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace streamfuse {

class DefaultFloats {
 public:
  DefaultFloats() : before_(read()) {
    if ((before_ & kModes) != kDefault) write((before_ & ~kModes) | kDefault);
  }
  ~DefaultFloats() {
    if ((before_ & kModes) != kDefault) write(before_);
  }
  DefaultFloats(const DefaultFloats&) = delete;
  DefaultFloats& operator=(const DefaultFloats&) = delete;

 private:
#if defined(__x86_64__)
  static constexpr uint64_t kModes = 0xffc0, kDefault = 0x1f80;  // MXCSR: all traps masked, nearest, no flushing
  static uint64_t read() { return _mm_getcsr(); }
  static void write(uint64_t state) { _mm_setcsr(static_cast<uint32_t>(state)); }
#elif defined(__aarch64__)
  // FPCR: AHP, DN, FZ, RMode, Stride, FZ16; traps; NEP, AH, FIZ
  static constexpr uint64_t kModes = 0x7f89f07, kDefault = 0;
  static uint64_t read() {
    uint64_t state;
    asm volatile("mrs %0, fpcr" : "=r"(state));
    return state;
  }
  static void write(uint64_t state) { asm volatile("msr fpcr, %0" : : "r"(state)); }
#else
  static constexpr uint64_t kModes = 0, kDefault = 0;
  static uint64_t read() { return 0; }
  static void write(uint64_t) {}
#endif

  uint64_t before_;
};

}  // namespace streamfuse
