// How many threads this machine wants. A phone has cores of two or three kinds; a chunk on a little one takes so much
// longer that the others wait for it, and it keeps no pace with the memory either.
#pragma once

#include <string>
#include <vector>

namespace streamfuse {

// Of the cores `allowed`, those that are not of the slowest kind, by what Linux says of them in `folder`
// (/sys/devices/system/cpu): cpuN/cpu_capacity, else cpuN/cpufreq/cpuinfo_max_freq. 0 where that cannot be read of any,
// or all are much the same.
int big_cores(const std::string& folder, const std::vector<int>& allowed);

// The big cores among those that this process may use, on a phone and on a Mac; elsewhere all of them, but at most 4.
int default_threads();

}  // namespace streamfuse
