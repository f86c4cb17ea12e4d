// The single-thread kernels of the operators: one table per instruction set, selected once per process.
#pragma once

#include "product_kernels.h"
#include "top_k.h"
#include "tree_attention.h"

namespace streamfuse {

// Some consecutive rows and one kv head (with all of its query heads). Row first_row + i attends to the new rows
// visible_rows[starts[i]] .. visible_rows[starts[i + 1]] (exclusive).
struct AttentionTask {
  int64_t first_row;
  int64_t rows;
  int64_t kv_head;
  const int32_t* visible_rows;
  const int64_t* starts;
};

// The scratch buffers of one task: pointers into one block of memory, each aligned to 64 bytes.
struct AttentionBuffers {
  int64_t line;          // floats per line of scores, padded to whole groups of positions
  int64_t tail_blocks;   // blocks of positions after the full cached blocks
  float* padded;         // one query, padded to whole groups
  Rounded query;         // [queries]
  float* tile;           // [queries, 16], output of a product
  float* scores;         // [queries, line]: scores, then weights
  float* totals;         // [queries]
  uint8_t* fresh_keys;   // the new rows' keys as tiles
  Rounded weights;       // [queries], for the full cached blocks
  Rounded tail_weights;  // of one row
  uint8_t* tail;         // values after the full cached blocks as tiles [tiles, tail_blocks]
  float* tail_scales;    // [tail_blocks * 32]
  float* sums;           // [tiles, queries, 16]
  size_t bytes;          // of all buffers

  // Buffers for tasks of `task_rows` rows; with `memory` null only `bytes` is meaningful.
  static AttentionBuffers at(const TreeAttention& a, int64_t task_rows, uint8_t* memory);
};

struct LaneKernels {
  const char* name;
  // `scratch` has the size `bytes` of its buffers.
  void (*attend)(const TreeAttention& args, const AttentionTask& task, uint8_t* scratch);
  void (*top_k_row)(const TopK& args, int64_t row);
  // Stores one head's key as position t of its tiles [.., groups, 544].
  void (*store_key)(const float* key, int64_t dim, int64_t t, uint8_t* head);
  // Stores one head's value as position t of its tiles [tiles, blocks, 544], and its scale.
  void (*store_value)(const float* value, int64_t dim, int64_t t, int64_t blocks, uint8_t* head, float* scales);
  const ProductKernels* products;
  bool (*fuses_products)();  // rounding.h
};

// The best table for this CPU, or the one that the environment variable STREAMFUSE_ISA names (avx512, avx_vnni, avx2,
// neon_i8mm, neon_dot, neon, portable) if this CPU supports it; used by tests.
const LaneKernels& lane_kernels();

}  // namespace streamfuse
