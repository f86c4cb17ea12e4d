// Measures memory bandwidth and the latency between cores, with the calling thread's thread pool.
#pragma once

namespace streamfuse {

// GB/s, the best of a few sweeps over a block that is larger than any cache. Throws std::bad_alloc.
double read_bandwidth();

// Latency in nanoseconds from one core's cache to another's, the best of a few measurements; 0 if measuring takes too
// long, as with a single core. Takes a few milliseconds.
double core_distance_ns();

}  // namespace streamfuse
