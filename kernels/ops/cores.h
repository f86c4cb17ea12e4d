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

// How many cores' time the control group of this process allows, as in a container, read below `root` ("" for the
// machine's own): cpu.max of cgroup v2, cpu.cfs_quota_us of v1, of the group and those that it lies in. A part of a
// core does not count, since threads that spin would use it up. 0 where there is no limit.
int cores_of_group(const std::string& root);

// The big cores among those that this process may use, on a phone and on a Mac; elsewhere all of them, but at most 4.
// Never more than `cores_of_group(root)`.
int default_threads(const std::string& root = "");

}  // namespace streamfuse
