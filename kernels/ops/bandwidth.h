// Measures memory bandwidth and the latency between cores, with the calling thread's thread pool.
#pragma once

#include <cstdint>

namespace streamfuse {

// GB/s, the best of a few sweeps over a block of so many bytes: of memory if no cache holds it. Throws std::bad_alloc.
double read_bandwidth(int64_t bytes);

// Latency in nanoseconds from one core's cache to another's, the best of a few measurements; 0 if measuring takes too
// long, as with a single core. Takes a few milliseconds.
double core_distance_ns();

}  // namespace streamfuse
