// A static graph has as many rows as its widest tree, and most trees are smaller. The engine sets the number of real
// rows, and operators compute only those. Other rows of an output are undefined, and real rows never read them; in
// methods with a pruner, which ranks all rows, they are zeros, so that no NaN can spread.
#pragma once

#include <algorithm>
#include <cstdint>

namespace streamfuse {

struct RealRows {
  int64_t width = 0;  // rows of the method that this thread runs; 0: no method, or all rows are real
  int64_t count = 0;

  static RealRows& current() {
    thread_local RealRows rows;
    return rows;
  }

  // How many of a tensor's `rows` to compute. A tensor of another height has rows of its own (those of streams).
  static int64_t of(int64_t rows) {
    const RealRows& now = current();
    return rows == now.width ? now.count : rows;
  }

  // Sets the other rows of a tensor [rows, size] to zero.
  static void clear_others(float* tensor, int64_t rows, int64_t size) {
    std::fill(tensor + of(rows) * size, tensor + rows * size, 0.0f);
  }
};

// Sets the number of real rows for the duration of a run.
class RealRowsScope {
 public:
  RealRowsScope(int64_t width, int64_t count) { RealRows::current() = {width, count}; }
  ~RealRowsScope() { RealRows::current() = {}; }
  RealRowsScope(const RealRowsScope&) = delete;
  RealRowsScope& operator=(const RealRowsScope&) = delete;
};

}  // namespace streamfuse
