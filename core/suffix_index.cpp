#include "rounding.h"

#include "suffix_index.h"

#include <algorithm>
#include <iterator>

namespace streamfuse {
namespace {

// Of a context, from that of the context without its first token.
uint64_t longer(uint64_t hash, int32_t token) {
  return (hash + static_cast<uint64_t>(token) + 1) * 0x9E3779B97F4A7C15u;
}

}  // namespace

SuffixIndex::SuffixIndex(size_t capacity)
    : slots_per_length_(capacity + capacity / 4 + 1), slots_(kLongest * slots_per_length_, 0) {
  tokens_.reserve(capacity);
  before_.reserve(capacity);
}

SuffixIndex::Context SuffixIndex::context_of(size_t place) const {
  Context context{{}, 0};
  while (context.length < std::min(kLongest, place)) {
    const int32_t token = tokens_[place - 1 - context.length];
    if (token == kBoundary) break;
    context.tokens[context.length++] = token;
  }
  return context;
}

// The slot of the context's last `length` tokens, which have this hash.
const int32_t& SuffixIndex::slot(const Context& context, size_t length, uint64_t hash) const {
  const int32_t* slots = slots_.data() + (length - 1) * slots_per_length_;
  for (size_t at = static_cast<size_t>((hash >> 32) * slots_per_length_ >> 32);; ++at) {
    if (at == slots_per_length_) at = 0;
    if (slots[at] == 0) return slots[at];
    const auto end = std::make_reverse_iterator(tokens_.begin() + slots[at]);
    if (std::equal(end, end + static_cast<std::ptrdiff_t>(length), context.tokens.begin())) return slots[at];
  }
}

void SuffixIndex::add(int32_t token) {
  const size_t place = tokens_.size();
  tokens_.push_back(token);
  before_.push_back({});
  if (token == kBoundary) return;
  const Context context = context_of(place);
  uint64_t hash = 0;
  for (size_t length = 1; length <= context.length; ++length) {
    hash = longer(hash, context.tokens[length - 1]);
    int32_t& latest = slot(context, length, hash);
    before_[place][length - 1] = latest;
    latest = static_cast<int32_t>(place);
  }
}

// Undoes `add` in reverse order, so that no search passes a slot that was freed.
void SuffixIndex::shorten(size_t size) {
  if (size == 0) std::fill(slots_.begin(), slots_.end(), 0);
  while (size > 0 && tokens_.size() > size) {
    const size_t place = tokens_.size() - 1;
    const Context context = tokens_[place] == kBoundary ? Context{{}, 0} : context_of(place);
    uint64_t hash = 0;
    for (size_t length = 1; length <= context.length; ++length) {
      hash = longer(hash, context.tokens[length - 1]);
      slot(context, length, hash) = before_[place][length - 1];
    }
    tokens_.pop_back();
    before_.pop_back();
  }
  tokens_.resize(std::min(size, tokens_.size()));
  before_.resize(tokens_.size());
}

SuffixIndex::Match SuffixIndex::longest(std::span<const int64_t> path) const {
  Context context{{}, std::min(kLongest, path.size())};
  std::copy_n(path.begin(), context.length, context.tokens.begin());
  Match found;
  uint64_t hash = 0;
  for (size_t length = 1; length <= context.length; ++length) {
    hash = longer(hash, context.tokens[length - 1]);
    const int32_t latest = slot(context, length, hash);
    if (latest == 0) break;
    found = {length, static_cast<size_t>(latest)};
  }
  return found;
}

}  // namespace streamfuse
