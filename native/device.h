// What the latency of passes depends on.
#pragma once

#include <string>

namespace streamfuse::native {

// Describes this machine and this build of the library.
std::string machine();

}  // namespace streamfuse::native
