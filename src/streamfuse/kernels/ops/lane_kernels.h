// The single-thread cores of the operators, one table per instruction set, chosen once per process.
#pragma once

#include "product_kernels.h"
#include "top_k.h"
#include "tree_attention.h"

namespace streamfuse {

// Some neighbouring rows and one kv head (all of its query heads). Row first_row + i sees the new rows
// visible_rows[starts[i]] .. visible_rows[starts[i + 1]].
struct AttentionTask {
  int64_t first_row;
  int64_t rows;
  int64_t kv_head;
  const int32_t* visible_rows;
  const int64_t* starts;
};

struct LaneKernels {
  const char* name;
  // `scratch` holds attention_scratch(...) floats.
  void (*attend)(const TreeAttention& args, const AttentionTask& task, float* scratch);
  void (*top_k_row)(const TopK& args, int64_t row);
  const ProductKernels* products;
  bool (*fuses_products)();  // rounding.h
};

// Floats of a line of scores.
inline int64_t attention_line(int64_t length) { return (length + 15) / 16 * 16; }

// Floats of scratch for so many rows times query heads of a kv head: padded heads, lines of scores, totals.
inline int64_t attention_scratch(int64_t queries, int64_t head_dim, int64_t length) {
  return queries * ((head_dim + 15) / 16 * 16 + attention_line(length) + 1);
}

// The best set for this CPU, or the one that the environment variable STREAMFUSE_ISA names (avx512, avx_vnni, avx2,
// neon_i8mm, neon_dot, neon, portable) where this CPU has it; used by tests.
const LaneKernels& lane_kernels();

}  // namespace streamfuse
