#include "device.h"

#include <dlfcn.h>
#include <sys/stat.h>
#include <sys/utsname.h>

#include <cstdlib>
#include <fstream>
#include <set>
#include <thread>

#ifdef __APPLE__
#include <sys/sysctl.h>
#endif

#include "streamfuse.h"

namespace streamfuse::native {
namespace {

#ifdef __APPLE__
// The processor's name.
std::string processor() {
  char name[128] = "";
  size_t size = sizeof name - 1;
  if (sysctlbyname("machdep.cpu.brand_string", name, &size, nullptr, 0) != 0) name[0] = 0;
  return name;
}
#else
std::string trimmed(const std::string& text) {
  const size_t first = text.find_first_not_of(" \t"), last = text.find_last_not_of(" \t\r");
  return first == std::string::npos ? "" : text.substr(first, last - first + 1);
}

// How the system describes the processor: its name, or the numbers of its kinds of cores.
std::string processor() {
  for (const char* wanted : {"model name", "Hardware", "CPU part"}) {
    std::ifstream file("/proc/cpuinfo");
    std::set<std::string> values;
    for (std::string line; std::getline(file, line);) {
      const size_t colon = line.find(':');
      if (colon != std::string::npos && trimmed(line.substr(0, colon)) == wanted)
        values.insert(trimmed(line.substr(colon + 1)));
    }
    std::string all;
    for (const std::string& value : values) all += (all.empty() ? "" : " ") + value;
    if (!all.empty()) return all;
  }
  return "";
}
#endif

// Changes with the file that this code is in: a library, or an app that it is linked into.
std::string build() {
  Dl_info info{};
  struct stat facts{};
  if (dladdr(reinterpret_cast<const void*>(&sf_abi_version), &info) == 0 || info.dli_fname == nullptr) return "";
  if (stat(info.dli_fname, &facts) != 0) return info.dli_fname;  // inside an app's package
  return "engine " + std::to_string(facts.st_size) + " " + std::to_string(facts.st_mtime);
}

}  // namespace

std::string machine() {
  utsname system{};
  uname(&system);
  const char* forced = std::getenv("STREAMFUSE_ISA");
  return std::string(system.sysname) + " " + system.machine + ", " + processor() + ", " +
         std::to_string(std::thread::hardware_concurrency()) + " cores, " + build() +
         (forced == nullptr || *forced == 0 ? "" : std::string(", ") + forced);
}

}  // namespace streamfuse::native
