// tree_attention: each row attends to the valid part of the cache and to its ancestors among the new rows.
//
// Contract (docs/contracts.md, section 6). All tensors are dense, row-major and float32, except the caches:
//   query [rows, query_heads, head_dim], key and value [rows, kv_heads, head_dim], caches as in kv_cache.h, visible
//   bool [rows, rows], out [rows, query_heads * head_dim].
// The canonical sequence of row i is: cache positions 0 .. cache_length-1, then the rows j with visible[i, j] in row
// order, whose keys and values are quantized like those in a cache.
//
// Row-invariance: the result is a function of the query row and the canonical sequence only, bit for bit. It does not
// depend on how many rows share the pass, on i, on the number of threads, or on which part of the sequence is in the
// cache.
//   score_t  = scale * (k_t . round(q)), a packed product: groups of 32 dimensions in order
//   weight_t = exp(score_t - max)
//   total    = lane t % 16 adds its weights in order of t, then the fixed tree of lanes.h
//   out      = (V^T . round(weight_t * scale of v_t)) / total, a packed product: groups of 32 positions in order
// A row that attends to nothing is zeros.
//
// window_attention: the same over the last `window` positions of each row's sequence. Weights of the others are 0, so
// groups stay where they are in the sequence. A cache of at least window + 32 positions may be a ring: position t of
// the sequence is at t modulo its capacity, and cache_length may be larger.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kv_cache.h"

namespace streamfuse {

struct TreeAttention {
  const float* query;
  const float* key;
  const float* value;
  const uint8_t* key_cache;
  const uint8_t* value_cache;
  const bool* visible;
  int64_t visible_stride;  // from one row of visible to the next; at least rows
  float* out;
  int64_t cache_length;
  int64_t rows;
  int64_t query_heads;  // a multiple of kv_heads
  KvShape cache;
  float scale;
  int64_t window = 0;  // 0: the whole sequence
  int64_t begin = 0;   // where the sequence begins in the cache, a multiple of 32

  // Whether the cache has all blocks that are read of a longer sequence.
  bool can_be_ring() const { return window > 0 && window <= cache.capacity - kCacheBlock; }
  // The first position of a sequence of `length` that is attended to.
  int64_t first_of(int64_t length) const { return window == 0 || length < window ? 0 : length - window; }
};

// Uses the thread pool (team.h) if there is enough work to distribute.
void tree_attention(const TreeAttention& args);

}  // namespace streamfuse
