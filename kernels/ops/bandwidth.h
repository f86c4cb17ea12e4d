// How fast this machine's memory gives bytes to the team of the calling thread.
#pragma once

namespace streamfuse {

// GB/s, the best of a few sweeps over a block that no cache holds. Throws std::bad_alloc.
double read_bandwidth();

}  // namespace streamfuse
