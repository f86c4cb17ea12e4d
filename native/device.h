// What the latency of passes depends on, and the file that keeps what was measured.
#pragma once

#include <string>

namespace streamfuse::native {

// This machine and this build of the library.
std::string machine();

// The file in `folder` for a bundle on a device. The folder is made; it may be read-only, and then nothing is kept.
std::string cost_file(const std::string& folder, const std::string& identity, const std::string& device);

}  // namespace streamfuse::native
