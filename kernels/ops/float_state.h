// Rounding and denormal numbers are the calling thread's business: a program may flush denormals to zero or round
// otherwise, and a thread is born with the state of whoever started it. Results must not depend on either, so our
// threads compute as IEEE 754 does by default, and a caller does for as long as it is inside a pass.
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
