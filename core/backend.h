// Ownership of a caller's engine (sf_backend).
#pragma once

#include <algorithm>
#include <utility>

#include "streamfuse_core.h"

namespace streamfuse {

// A caller's table of functions; the last owner releases it, once.
class Backend {
 public:
  // A table of this version or another; null: no functions.
  explicit Backend(const sf_backend* given) {
    if (given == nullptr) return;
    std::copy_n(reinterpret_cast<const char*>(given), std::min(given->size, sizeof table_),
                reinterpret_cast<char*>(&table_));
  }
  ~Backend() {
    if (table_.release != nullptr) table_.release(table_.context);
  }
  Backend(Backend&& other) noexcept : table_(other.take()) {}
  Backend& operator=(Backend&&) = delete;

  const sf_backend* operator->() const { return &table_; }
  // The table for its next owner.
  sf_backend take() { return std::exchange(table_, {}); }

 private:
  sf_backend table_{};
};

}  // namespace streamfuse
