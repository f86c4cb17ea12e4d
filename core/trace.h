// Marks sections of time for the system's profilers: Perfetto and Android Studio, or Instruments. On other systems, and
// while nobody records, a section costs a few nanoseconds.
#pragma once

#include <cstdint>

namespace streamfuse {

class TraceSection {
 public:
  // `name` must outlive the section.
  explicit TraceSection(const char* name) noexcept;
  ~TraceSection();
  TraceSection(const TraceSection&) = delete;
  TraceSection& operator=(const TraceSection&) = delete;

 private:
  [[maybe_unused]] bool is_open_ = false;
  [[maybe_unused]] uint64_t id_ = 0;  // of Apple's interval
};

}  // namespace streamfuse
