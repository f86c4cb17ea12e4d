#include "rounding.h"

#include "lookup.h"

#include <algorithm>

#include "numbers.h"

namespace streamfuse {
namespace {

constexpr double kForgetChains = 0.98;  // about the last fifty chains count

}  // namespace

LookUp::LookUp(int64_t capacity) {
  size_t slots = 16;
  while (slots < 2 * static_cast<size_t>(capacity)) slots *= 2;
  for (auto& table : places_) table.assign(slots, 0);
  chain_.reserve(kMostTokens);
}

// The slot of the run of `length` tokens that ends before `end`: 0 where it did not stand in the text yet.
int32_t& LookUp::slot(int64_t length, const int64_t* tokens, int64_t end) {
  auto& table = places_[static_cast<size_t>(length - kShortest)];
  uint64_t hash = 0;
  for (int64_t i = end - length; i < end; ++i) hash = (hash ^ static_cast<uint64_t>(tokens[i])) * 0x9E3779B97F4A7C15u;
  for (size_t at = static_cast<size_t>(hash >> 32);; ++at) {
    int32_t& place = table[at & (table.size() - 1)];
    if (place == 0 || std::equal(tokens + end - length, tokens + end, tokens + place - length)) return place;
  }
}

void LookUp::follow(const std::vector<int64_t>& tokens, int64_t kept) {
  if (kept < followed_) {
    for (auto& table : places_) std::fill(table.begin(), table.end(), 0);
    followed_ = 0;
  }
  const int64_t size = static_cast<int64_t>(tokens.size());
  for (int64_t place = followed_; place < size; ++place)
    for (int64_t length = kShortest; length <= std::min(kLongest, place); ++length)
      slot(length, tokens.data(), place) = static_cast<int32_t>(place);
  followed_ = std::max(followed_, size);
}

bool LookUp::join(const std::vector<int64_t>& tokens, int64_t width, int64_t depth, Tree& tree) {
  const int64_t size = static_cast<int64_t>(tokens.size());
  chain_.clear();
  for (int64_t length = std::min(kLongest, size - 1); length >= kShortest && chain_.empty(); --length) {
    const int64_t place = slot(length, tokens.data(), size);
    if (place == 0) {
      if (length == kShortest) return false;
      continue;
    }
    match_ = length;
    const int64_t count = std::min({depth, kMostTokens, size - place});
    chain_.assign(tokens.begin() + place, tokens.begin() + place + std::max<int64_t>(count, 0));
  }
  if (chain_.empty()) return false;
  int64_t row = 0;
  double path = 0.0;
  for (size_t i = 0; i < chain_.size(); ++i) {
    const size_t s = static_cast<size_t>(strength(match_, static_cast<int64_t>(i)));
    path += logarithm(hits_[s] / trials_[s]);
    const double log_prob = std::min(path, tree[row].log_prob);
    int64_t child = tree.child(row, chain_[i]);
    if (child == 0) child = tree.add(chain_[i], row, log_prob, SF_LOOKUP);
    Tree::Node& node = tree.nodes[static_cast<size_t>(child)];
    node.log_prob = std::max(node.log_prob, log_prob);
    node.exact = true;
    row = child;
  }
  joiner_.order(width, tree);
  return true;
}

void LookUp::learn(std::span<const int64_t> chosen) {
  for (size_t i = 0; i < std::min(chain_.size(), chosen.size()); ++i) {
    const size_t s = static_cast<size_t>(strength(match_, static_cast<int64_t>(i)));
    const bool right = chain_[i] == chosen[i];
    hits_[s] = kForgetChains * hits_[s] + right;
    trials_[s] = kForgetChains * trials_[s] + 1;
    if (!right) return;
  }
}

}  // namespace streamfuse
