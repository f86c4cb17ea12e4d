// How far apart numbers must lie that different cores write, so that no core waits for another's.
#pragma once

#include <cstddef>

namespace streamfuse {

// Apple's cores share lines of 128 bytes. (std::hardware_destructive_interference_size is missing from some libraries.)
#if defined(__APPLE__) && defined(__aarch64__)
constexpr std::size_t kCacheLine = 128;
#else
constexpr std::size_t kCacheLine = 64;
#endif

}  // namespace streamfuse
