// FNV-1a, 64 bits: names files and detects damage; no protection against tampering.
#pragma once

#include <cstdint>
#include <string_view>

namespace streamfuse {

inline uint64_t fnv1a(std::string_view bytes) {
  uint64_t value = 0xcbf29ce484222325u;
  for (const char byte : bytes) value = (value ^ static_cast<uint8_t>(byte)) * 0x100000001b3u;
  return value;
}

}  // namespace streamfuse
