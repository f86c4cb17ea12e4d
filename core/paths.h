// Paths of files, as callers name them.
#pragma once

#include <string>

namespace streamfuse {

std::string folder_of(const std::string& path);      // "." if the path has none
std::string absolute_path(const std::string& path);  // the same file in any working directory; "" for ""

}  // namespace streamfuse
