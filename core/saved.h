// A session in a file: tokens, the cache in the engine's own form, a note of the caller, and what says whose they are.
#pragma once

#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "model.h"

namespace streamfuse {

// All but the bytes of the cache.
struct Saved {
  std::string identity;  // of the bundle
  int64_t capacity = 0, cached = 0;
  std::vector<int64_t> tokens;
  uint64_t cache_bytes = 0;  // 0 where the engine cannot save them
  std::string note;          // the caller's own, for example a conversation
};

// Writes the file in one piece or not at all; `cache` hands the bytes of the cache, part after part, to the function
// that it gets. Throws Failure(SF_BAD_FILE), naming the file, and what `cache` throws.
using Put = std::function<void(const void* data, uint64_t bytes)>;
void write(const Saved& saved, const std::string& path, const std::function<void(const Put&)>& cache);

// Opens one, and checks it against the bundle and against damage before anything is used; throws likewise.
class SavedFile {
 public:
  SavedFile(const std::string& path, const Spec& spec);

  const Saved& saved() const { return saved_; }
  bool get(void* data, uint64_t bytes);  // the next bytes of the cache; false: there are not as many

 private:
  struct Closer {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  std::unique_ptr<std::FILE, Closer> file_;
  Saved saved_;
  uint64_t left_ = 0;  // bytes of the cache
};

}  // namespace streamfuse
