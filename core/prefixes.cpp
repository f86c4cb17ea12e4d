#include "rounding.h"

#include "prefixes.h"

#include <algorithm>

#include "error.h"

namespace streamfuse {

void Prefixes::add(const std::string& path, const Spec& spec) {
  try {
    prefixes_.push_back(read_prefix(path, spec));
  } catch (const Failure& failure) {
    refused_ = failure.what();
    throw;
  }
}

const Prefix* Prefixes::longest(std::span<const int64_t> prompt, int64_t cached) const {
  const Prefix* found = nullptr;
  for (const Prefix& prefix : prefixes_) {
    const std::vector<int64_t>& tokens = prefix.tokens;
    // The last token of the prompt, which is the first root, is never in the cache.
    const auto gained = static_cast<int64_t>(std::min(tokens.size(), prompt.size() - 1));
    if (gained <= cached || tokens.size() > prompt.size()) continue;
    if (found != nullptr && tokens.size() <= found->tokens.size()) continue;
    if (std::equal(tokens.begin(), tokens.end(), prompt.begin())) found = &prefix;
  }
  return found;
}

}  // namespace streamfuse
