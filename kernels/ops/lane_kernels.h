// The single-thread cores of the operators, one table per instruction set, chosen once per process.
#pragma once

#include "product_kernels.h"
#include "top_k_log_prob.h"
#include "tree_attention.h"

namespace streamfuse {

struct LaneKernels {
  const char* name;
  // One row and one kv head (all of its query heads). `visible_rows` lists the n_visible new rows that the row sees.
  // `scratch` holds attention_scratch(...) floats.
  void (*attend)(const TreeAttention& args, int64_t row, int64_t kv_head, const int32_t* visible_rows,
                 int64_t n_visible, float* scratch);
  void (*top_k_row)(const TopKLogProb& args, int64_t row);
  const ProductKernels* products;
};

// Query heads that one pass over keys and values serves.
constexpr int64_t kHeadBlock = 4;

// Floats of scratch: padded query heads, then one padded line of scores per head.
inline int64_t attention_scratch(int64_t head_dim, int64_t length) {
  return kHeadBlock * ((head_dim + 15) / 16 * 16 + (length + 15) / 16 * 16);
}

// The best set for this CPU, or the one that the environment variable STREAMFUSE_ISA names (avx512, avx2, neon_i8mm,
// neon_dot, neon, portable) where this CPU has it; used by tests.
const LaneKernels& lane_kernels();

}  // namespace streamfuse
