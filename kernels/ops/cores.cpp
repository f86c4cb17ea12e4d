#include "rounding.h"

#include "cores.h"

#include <algorithm>
#include <fstream>
#include <thread>

#if defined(__APPLE__)
#include <sys/sysctl.h>
#elif defined(__linux__)
#include <sched.h>
#include <unistd.h>
#endif

namespace streamfuse {
namespace {

constexpr int kMostAlike = 4;  // limit for cores of one kind: more do not increase memory bandwidth
constexpr int kMostBig = 8;    // limit for big cores; no phone has more

// Cores are of the same kind if the slower has at least nine tenths of the faster one's speed. A kind is little only if
// it has less than three quarters of the fastest core's speed, since both kinds of some phones are big.
constexpr double kSameKind = 0.9, kLittle = 0.75;

// The value that Linux reports for each core; 0 for a core without this file.
std::vector<double> read(const std::string& folder, const std::vector<int>& cores, const char* file) {
  std::vector<double> values;
  for (const int core : cores) {
    std::ifstream text(folder + "/cpu" + std::to_string(core) + "/" + file);
    double value = 0;
    if (!(text >> value) || !(value > 0) || value > 1e12) value = 0;
    values.push_back(value);
  }
  return values;
}

std::vector<int> allowed_cores() {
  std::vector<int> cores;
#if defined(__ANDROID__)
  // Not the affinity: that of a background thread lacks the big cores, and answers run in other threads.
  for (int core = 0; core < static_cast<int>(sysconf(_SC_NPROCESSORS_CONF)); ++core) cores.push_back(core);
#elif defined(__linux__)
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) != 0) return cores;
  for (int core = 0; core < CPU_SETSIZE; ++core)
    if (CPU_ISSET(core, &set)) cores.push_back(core);
#endif
  return cores;
}

// The limit of one group in cores; 0: none. `period_file` is empty if quota and period are in one file.
double limit_of(const std::string& quota_file, const std::string& period_file) {
  std::ifstream quotas(quota_file);
  double quota = 0, period = 0;
  if (!(quotas >> quota)) return 0;  // no such file, or "max"
  if (period_file.empty()) {
    quotas >> period;
  } else {
    std::ifstream periods(period_file);
    periods >> period;
  }
  return quota > 0 && period > 0 ? quota / period : 0;
}

}  // namespace

int cores_of_group(const std::string& root) {
  // Lines are "number:controllers:path"; v2 has a line without controllers. In a container, the path may be that of the
  // host and not exist here; then the limit at the mount point applies.
  std::ifstream groups(root + "/proc/self/cgroup");
  double least = 0;
  for (std::string line; std::getline(groups, line);) {
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const bool unified = controllers == ",,";
    if (!unified && controllers.find(",cpu,") == std::string::npos) continue;
    const std::string top = root + "/sys/fs/cgroup" + (unified ? "" : "/cpu");
    for (std::string path = line.substr(second + 1);; path.resize(path.rfind('/'))) {
      if (path == "/") path.clear();
      const std::string group = top + path;
      const double limit = unified ? limit_of(group + "/cpu.max", "")
                                   : limit_of(group + "/cpu.cfs_quota_us", group + "/cpu.cfs_period_us");
      if (limit > 0) least = least > 0 ? std::min(least, limit) : limit;
      if (path.empty() || path[0] != '/') break;
    }
  }
  return least > 0 ? static_cast<int>(std::clamp(least, 1.0, 1e6)) : 0;
}

int big_cores(const std::string& folder, const std::vector<int>& allowed) {
  for (const char* const file : {"cpu_capacity", "cpufreq/cpuinfo_max_freq"}) {
    std::vector<double> known = read(folder, allowed, file);
    known.erase(std::remove(known.begin(), known.end(), 0.0), known.end());  // offline or not reported
    if (known.empty()) continue;
    const auto [slowest, fastest] = std::minmax_element(known.begin(), known.end());
    if (*slowest >= kLittle * *fastest) continue;  // frequencies may differ where capacities do not
    const double little = *slowest / kSameKind;
    return static_cast<int>(std::count_if(known.begin(), known.end(), [=](double value) { return value > little; }));
  }
  return 0;
}

int default_threads(const std::string& root) {
  const int allowed_time = cores_of_group(root);
  const int most = allowed_time > 0 ? allowed_time : kMostBig;
  int big = 0;
  const std::vector<int> allowed = allowed_cores();
#if defined(__APPLE__)
  int count = 0;
  size_t size = sizeof count;
  if (sysctlbyname("hw.perflevel0.physicalcpu", &count, &size, nullptr, 0) == 0) big = count;
#elif defined(__aarch64__)
  // On other systems, frequencies differ between equal cores, and a core with two threads counts twice.
  big = big_cores("/sys/devices/system/cpu", allowed);
#endif
  if (big > 0) return std::min({big, kMostBig, most});
  int all = static_cast<int>(std::thread::hardware_concurrency());
  if (!allowed.empty()) all = std::min(all, static_cast<int>(allowed.size()));
  return std::clamp(all, 1, std::min(kMostAlike, most));
}

}  // namespace streamfuse
