// Session files: tokens, the cache in the engine's own format, a note of the caller, and the bundle's identity.
// A prefix is a session file whose cache a text may begin with.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "engine.h"
#include "model.h"

namespace streamfuse {

// Writes the file atomically. The engine's cache contains the first tokens. Throws Failure(SF_BAD_FILE), naming the
// file, and any failure of the engine.
void save_session(const std::string& path, const Spec& spec, const std::vector<int64_t>& tokens, const Engine& engine,
                  const std::string& note);

// Reads a file: checks it for damage and against bundle and engine, passes the note to `take`, which may refuse it with
// an error code, calls `discard`, which must empty the cache, and fills the cache. Returns the tokens. If it throws
// before `discard`, nothing has changed. A cache that cannot be filled is SF_EXECUTION.
std::vector<int64_t> restore_session(const std::string& path, const Spec& spec, Engine& engine,
                                     const std::function<int(const std::string&)>& take,
                                     const std::function<void()>& discard);

// The cached tokens of a session file; its cache is not read yet.
struct Prefix {
  std::string path;
  std::vector<int64_t> tokens;
  uint64_t cache_bytes = 0;
};

// Checks the file against the bundle, but does not read the cache. Throws Failure(SF_BAD_FILE), naming the file.
Prefix read_prefix(const std::string& path, const Spec& spec);

// Checks the file for damage and replaces the cache by the file's. If it throws, the cache is unchanged or empty.
void load_prefix(const Prefix& prefix, const Spec& spec, Engine& engine);

}  // namespace streamfuse
