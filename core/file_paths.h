// Paths of files, as callers name them. (A header named paths.h would hide the C library's from Swift.)
#pragma once

#include <string>

namespace streamfuse {

std::string folder_of(const std::string& path);      // "." if the path has none
std::string absolute_path(const std::string& path);  // the same file in any working directory; "" for ""

}  // namespace streamfuse
