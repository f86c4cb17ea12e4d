// A session in a file: tokens, the cache in the engine's own form, a note of the caller, and whose they are.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "engine.h"
#include "model.h"

namespace streamfuse {

// Writes the file in one piece or not at all. The engine's cache holds the first tokens. Throws Failure(SF_BAD_FILE),
// naming the file, and what the engine throws.
void save_session(const std::string& path, const Spec& spec, const std::vector<int64_t>& tokens, const Engine& engine,
                  const std::string& note);

// Reads one: checks it against the bundle, the engine and damage, shows the note to `take`, whose refusal (a code) ends
// it, calls `discard`, which must empty the cache, and fills the cache. Returns the tokens; nothing has changed if it
// throws before `discard`.
std::vector<int64_t> restore_session(const std::string& path, const Spec& spec, Engine& engine,
                                     const std::function<int(const std::string&)>& take,
                                     const std::function<void()>& discard);

}  // namespace streamfuse
