// How fast this machine's memory gives bytes to the team of the calling thread.
#pragma once

namespace streamfuse {

// GB/s, the best of a few sweeps over a block that no cache holds. Throws std::bad_alloc.
double read_bandwidth();

// Nanoseconds that a value takes from one core's cache to another's, the best of some; 0 where that takes too long to
// find out, as with a single core. Takes a few milliseconds.
double core_distance_ns();

}  // namespace streamfuse
