// A static graph has as many rows as its widest tree; most trees are smaller. The engine says how many of the rows are
// real, and the operators compute those alone. What lies in the other rows of an output is of no meaning, and no real
// row ever sees it; where a pruner ranks all rows it is zeros, for a number that is none would spread.
#pragma once

#include <algorithm>
#include <cstdint>

namespace streamfuse {

struct RealRows {
  int64_t width = 0;  // rows of the method that this thread runs; 0: none, or all of them count
  int64_t count = 0;

  static RealRows& current() {
    thread_local RealRows rows;
    return rows;
  }

  // Of a tensor's `rows`, those to compute. One that is not as wide as the method has rows of its own (streams').
  static int64_t of(int64_t rows) {
    const RealRows& now = current();
    return rows == now.width ? now.count : rows;
  }

  // Zeros in the other rows of a tensor [rows, size].
  static void clear_others(float* tensor, int64_t rows, int64_t size) {
    std::fill(tensor + of(rows) * size, tensor + rows * size, 0.0f);
  }
};

// For the time of one run.
class RealRowsScope {
 public:
  RealRowsScope(int64_t width, int64_t count) { RealRows::current() = {width, count}; }
  ~RealRowsScope() { RealRows::current() = {}; }
  RealRowsScope(const RealRowsScope&) = delete;
  RealRowsScope& operator=(const RealRowsScope&) = delete;
};

}  // namespace streamfuse
