// Measures memory bandwidth and the latency between cores, with the calling thread's thread pool.
#pragma once

#include <cstdint>

namespace streamfuse {

// GB/s, the best of a few sweeps over a block of this size (rounded down to 64 KiB, at least that). If a cache holds the
// block, this is the bandwidth of the cache. Throws std::bad_alloc.
double read_bandwidth(int64_t bytes);

// Latency in nanoseconds from one core's cache to another's, the best of a few measurements; 0 if measuring takes too
// long, as with a single core. Takes a few milliseconds.
double core_distance_ns();

}  // namespace streamfuse
