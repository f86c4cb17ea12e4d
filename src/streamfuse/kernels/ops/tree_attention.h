// tree_attention: each row attends to the valid part of the cache and to its ancestors among the new rows.
//
// Contract (docs/contracts.md, section 6). All tensors dense, row-major, float32:
//   query [rows, query_heads, head_dim], key and value [rows, kv_heads, head_dim], caches [capacity, kv_heads,
//   head_dim], visible bool [rows, rows], out [rows, query_heads * head_dim].
// The canonical sequence of row i is: cache positions 0 .. cache_length-1, then the rows j with visible[i, j] in row
// order.
//
// Row-invariance: the result is a function of the query row and the canonical sequence alone, to the bit. It does not
// depend on how many rows share the pass, on i, on the number of threads, or on which part of the sequence lies in the
// cache.
//   score_t  = scale * dot(q, k_t);  lane d % 16 adds its products in order of d, then the fixed tree of lanes.h
//   weight_t = exp(score_t - max)
//   total    = lane t % 16 adds its weights in order of t, then the fixed tree
//   out      = (sum over t, in order, of weight_t * v_t) / total
// A row that sees nothing gives zeros.
#pragma once

#include <cstddef>
#include <cstdint>

namespace streamfuse {

struct TreeAttention {
  const float* query;
  const float* key;
  const float* value;
  const float* key_cache;
  const float* value_cache;
  const bool* visible;
  int64_t visible_stride;  // from one row of visible to the next; at least rows
  float* out;
  int64_t cache_length;
  int64_t rows;
  int64_t query_heads;  // a multiple of kv_heads
  int64_t kv_heads;
  int64_t head_dim;
  float scale;
};

// Runs on the team (team.h) where the work is large enough to share.
void tree_attention(const TreeAttention& args);

}  // namespace streamfuse
