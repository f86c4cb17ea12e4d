// The default number of threads for this machine. A phone has cores of two or three kinds. A chunk takes so much longer
// on a small core that the others wait for it, and a small core cannot saturate the memory bandwidth either.
#pragma once

#include <string>
#include <vector>

namespace streamfuse {

// The number of cores in `allowed` that are not of the slowest kind, according to Linux's files in `folder`
// (/sys/devices/system/cpu): cpuN/cpu_capacity, else cpuN/cpufreq/cpuinfo_max_freq. 0 if none can be read or all cores
// are of about the same speed.
int big_cores(const std::string& folder, const std::vector<int>& allowed);

// The CPU limit of this process's control group in whole cores, as in a container: cpu.max of cgroup v2 or
// cpu.cfs_quota_us of v1, of the group and its parents, read below `root` ("" for the real file system). Fractions of a
// core are dropped, since spinning threads would use them up. 0 if there is no limit.
int cores_of_group(const std::string& root);

// On phones and Macs the big cores that this process may use; elsewhere all of its cores, but at most 4. Never more
// than `cores_of_group(root)`.
int default_threads(const std::string& root = "");

}  // namespace streamfuse
