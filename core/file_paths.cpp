#include "rounding.h"

#include "file_paths.h"

#include <filesystem>
#include <system_error>

namespace streamfuse {

std::string folder_of(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : slash == 0 ? "/" : path.substr(0, slash);
}

std::string absolute_path(const std::string& path) {
  if (path.empty()) return path;
  std::error_code unknown;  // the working directory may have been removed
  const std::filesystem::path absolute = std::filesystem::absolute(path, unknown);
  return unknown ? path : absolute.string();
}

}  // namespace streamfuse
