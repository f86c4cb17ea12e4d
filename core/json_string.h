// Arbitrary text as a JSON string.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>

#include "guard.h"

namespace streamfuse {

// Includes the quotes. Invalid UTF-8 becomes '?', so that the JSON is always valid.
inline std::string json_string(std::string_view text) {
  std::string out = "\"";
  while (!text.empty()) {
    const size_t size = character_bytes(text);
    const char first = text[0];
    if (size == 0) {
      out += '?';
    } else if (static_cast<uint8_t>(first) < 0x20) {
      char escaped[8];
      std::snprintf(escaped, sizeof escaped, "\\u%04x", static_cast<unsigned>(first));
      out += escaped;
    } else {
      if (first == '"' || first == '\\') out += '\\';
      out += text.substr(0, size);
    }
    text.remove_prefix(size == 0 ? 1 : size);
  }
  return out + '"';
}

}  // namespace streamfuse
