// The distance between numbers that different cores write, to avoid false sharing.
#pragma once

#include <cstddef>

namespace streamfuse {

// Apple's cores have cache lines of 128 bytes. (Some libraries lack std::hardware_destructive_interference_size.)
#if defined(__APPLE__) && defined(__aarch64__)
constexpr std::size_t kCacheLine = 128;
#else
constexpr std::size_t kCacheLine = 64;
#endif

}  // namespace streamfuse
