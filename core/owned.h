// Ownership of an object that a caller passes as a table of functions: an engine (sf_backend) or a constraint
// (sf_constraint).
#pragma once

#include <algorithm>
#include <cstddef>
#include <utility>

#include "streamfuse_core.h"

namespace streamfuse {

// A caller's table of functions; the last owner releases it, once.
template <typename Table>
class Owned {
 public:
  // A table of this version or another; null: no functions.
  explicit Owned(const Table* given) {
    if (given == nullptr) return;
    std::copy_n(reinterpret_cast<const char*>(given), std::min(given->size, sizeof table_),
                reinterpret_cast<char*>(&table_));
  }
  ~Owned() {
    if (table_.release != nullptr) table_.release(table_.context);
  }
  Owned(Owned&& other) noexcept : table_(other.take()) {}
  Owned& operator=(Owned&&) = delete;

  const Table* operator->() const { return &table_; }
  // The table for its next owner.
  Table take() { return std::exchange(table_, {}); }

 private:
  Table table_{};
};

using Backend = Owned<sf_backend>;

// Null for options of a version without constraints.
inline const sf_constraint* constraint_of(const sf_options* given) {
  constexpr size_t kEnd = offsetof(sf_options, constraint) + sizeof(given->constraint);
  return given == nullptr || given->size < kEnd ? nullptr : given->constraint;
}

}  // namespace streamfuse
