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

// The scratch of one task: pointers into one block of memory, each at a multiple of 64 bytes.
struct AttentionRoom {
  int64_t line;          // floats of a line of scores: whole groups of positions
  int64_t tail_blocks;   // blocks of positions behind the whole blocks that are cached
  float* padded;         // one query, padded to whole groups
  Rounded query;         // [queries]
  float* tile;           // [queries, 16], what a product gives
  float* scores;         // [queries, line]: scores, then weights
  float* totals;         // [queries]
  uint8_t* fresh_keys;   // the new rows' keys as tiles
  Rounded weights;       // [queries], over the whole cached blocks
  Rounded tail_weights;  // of one row
  uint8_t* tail;         // values behind the whole cached blocks as tiles [tiles, tail_blocks]
  float* tail_scales;    // [tail_blocks * 32]
  float* sums;           // [tiles, queries, 16]
  size_t bytes;          // of all

  // For tasks of so many rows; `memory` may be null to ask for `bytes`.
  static AttentionRoom at(const TreeAttention& a, int64_t task_rows, uint8_t* memory);
};

struct LaneKernels {
  const char* name;
  // `scratch` has the bytes of its AttentionRoom.
  void (*attend)(const TreeAttention& args, const AttentionTask& task, uint8_t* scratch);
  void (*top_k_row)(const TopK& args, int64_t row);
  // One head's key as position t of its tiles [.., groups, 544].
  void (*store_key)(const float* key, int64_t dim, int64_t t, uint8_t* head);
  // One head's value as position t of its tiles [tiles, blocks, 544], and its scale.
  void (*store_value)(const float* value, int64_t dim, int64_t t, int64_t blocks, uint8_t* head, float* scales);
  const ProductKernels* products;
  bool (*fuses_products)();  // rounding.h
};

// The best set for this CPU, or the one that the environment variable STREAMFUSE_ISA names (avx512, avx_vnni, avx2,
// neon_i8mm, neon_dot, neon, portable) where this CPU has it; used by tests.
const LaneKernels& lane_kernels();

}  // namespace streamfuse
