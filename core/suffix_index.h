// Finds the longest earlier occurrence of the last tokens of a text: a hash table of all contexts of one to kLongest
// tokens, and a linked list of the places of each context. Used for the current text and for the memory of earlier
// answers (lookup.h, memory.h).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace streamfuse {

// A place is the position of a token that follows a context. Adding a token, removing the last one, and finding the
// latest place of the longest match take O(kLongest) steps, however long the text is. The constructor allocates
// 76 bytes per token of the capacity; nothing is allocated later.
class SuffixIndex {
 public:
  static constexpr size_t kLongest = 8;     // tokens of a context
  static constexpr int32_t kBoundary = -1;  // separates texts: in no context, and at no place that is found

  explicit SuffixIndex(size_t capacity);

  size_t size() const { return tokens_.size(); }
  int32_t operator[](size_t place) const { return tokens_[place]; }

  void add(int32_t token);
  // Removes the last tokens; the first `size` remain.
  void shorten(size_t size);

  struct Match {
    size_t length = 0;  // tokens of the context
    size_t place = 0;   // the latest one; 0: none
  };
  // The longest context at the end of `path`, whose tokens are in reverse order: the last one first.
  Match longest(std::span<const int64_t> path) const;
  // The previous place of the context of `length` tokens before `place`; 0: none.
  size_t before(size_t length, size_t place) const { return static_cast<size_t>(before_[place][length - 1]); }

 private:
  struct Context {
    std::array<int32_t, kLongest> tokens;  // the last one first
    size_t length;
  };
  Context context_of(size_t place) const;
  const int32_t& slot(const Context& context, size_t length, uint64_t hash) const;
  int32_t& slot(const Context& context, size_t length, uint64_t hash) {
    return const_cast<int32_t&>(std::as_const(*this).slot(context, length, hash));
  }

  std::vector<int32_t> tokens_;
  std::vector<std::array<int32_t, kLongest>> before_;  // of each place, by length - 1; 0: none
  size_t slots_per_length_;
  std::vector<int32_t> slots_;  // a hash table for each length: the latest place of a context; 0: free
};

}  // namespace streamfuse
