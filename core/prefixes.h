// Stored caches of beginnings of prompts, for example of a system prompt that a bundle ships. Sequences share them.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "saved.h"

namespace streamfuse {

// Immutable once sequences use it.
class Prefixes {
 public:
  // Throws Failure(SF_BAD_FILE) for a file that does not fit the bundle, and keeps the message in `refused`.
  void add(const std::string& path, const Spec& spec);

  // The longest prefix that the prompt begins with; null if there is none, or the cache would not have more tokens of
  // the prompt than its present `cached` ones. The prompt must not be empty.
  const Prefix* longest(std::span<const int64_t> prompt, int64_t cached) const;

  const std::string& refused() const { return refused_; }  // why the last refused file was; empty: none was

 private:
  std::vector<Prefix> prefixes_;
  std::string refused_;
};

}  // namespace streamfuse
