// What the latency of passes depends on, and the file that caches it.
#pragma once

#include <string>

namespace streamfuse::native {

// Describes this machine and this build of the library.
std::string machine();

// The file in `folder` for a bundle on a device. Creates the folder; if it is read-only, nothing is cached.
std::string cost_file(const std::string& folder, const std::string& identity, const std::string& device);

}  // namespace streamfuse::native
