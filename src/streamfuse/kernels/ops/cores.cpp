#include "rounding.h"

#include "cores.h"

#include <algorithm>
#include <fstream>
#include <thread>

#if defined(__APPLE__)
#include <sys/sysctl.h>
#elif defined(__linux__)
#include <sched.h>
#endif

namespace streamfuse {
namespace {

constexpr int kMostAlike = 4;  // of cores that are all alike: with more the memory is no faster
constexpr int kMostBig = 8;    // more than any phone has

// Two cores are of one kind where the slower has nine tenths of the faster, and a kind is little only where it has less
// than three quarters of the fastest core: the two kinds of some phones are both big.
constexpr double kSameKind = 0.9, kLittle = 0.75;

// What Linux says of each core that is there; 0 of one that has no such file.
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
#if defined(__linux__)
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) != 0) return cores;
  for (int core = 0; core < CPU_SETSIZE; ++core)
    if (CPU_ISSET(core, &set)) cores.push_back(core);
#endif
  return cores;
}

}  // namespace

int big_cores(const std::string& folder, const std::vector<int>& allowed) {
  for (const char* const file : {"cpu_capacity", "cpufreq/cpuinfo_max_freq"}) {
    std::vector<double> known = read(folder, allowed, file);
    known.erase(std::remove(known.begin(), known.end(), 0.0), known.end());  // offline, or not said
    if (known.empty()) continue;
    const auto [slowest, fastest] = std::minmax_element(known.begin(), known.end());
    if (*slowest >= kLittle * *fastest) continue;  // frequencies may tell apart what capacities do not
    const double little = *slowest / kSameKind;
    return static_cast<int>(std::count_if(known.begin(), known.end(), [=](double value) { return value > little; }));
  }
  return 0;
}

int default_threads() {
  int big = 0;
  const std::vector<int> allowed = allowed_cores();
#if defined(__APPLE__)
  int count = 0;
  size_t size = sizeof count;
  if (sysctlbyname("hw.perflevel0.physicalcpu", &count, &size, nullptr, 0) == 0) big = count;
#elif defined(__aarch64__)
  // Elsewhere frequencies differ between cores that are alike, and a big core counts twice.
  big = big_cores("/sys/devices/system/cpu", allowed);
#endif
  if (big > 0) return std::min(big, kMostBig);
  int all = static_cast<int>(std::thread::hardware_concurrency());
  if (!allowed.empty()) all = std::min(all, static_cast<int>(allowed.size()));
  return std::clamp(all, 1, kMostAlike);
}

}  // namespace streamfuse
