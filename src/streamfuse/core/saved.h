// A session in a file: tokens, the cache in the engine's own form, a note of the caller, and what says whose they are.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model.h"

namespace streamfuse {

struct Saved {
  std::string identity;  // of the bundle
  int64_t capacity = 0, cached = 0;
  std::vector<int64_t> tokens;
  std::vector<uint8_t> cache;  // empty where the engine cannot save it
  std::string note;            // the caller's own, for example a conversation
};

// In one piece or not at all. Throws Failure(SF_BAD_FILE), naming the file.
void write(const Saved& saved, const std::string& path);

// Checked against the bundle and against damage before anything is used; likewise.
Saved read(const std::string& path, const Spec& spec);

}  // namespace streamfuse
