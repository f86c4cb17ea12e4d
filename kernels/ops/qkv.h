// qkv and biased_qkv: one product for query, key and value, then biases, norms per head and rotary embedding while the
// head is in the CPU's cache. Norms over all heads of a row, and the rotation after them, follow when all heads are
// there. query: the same for the query alone; kv_heads is 0, key and value are null.
//
// Contract (docs/contracts.md, section 7): x float32 [rows, inputs], cos and sin [rows, head_dim], query
// [rows, heads, head_dim], key and value [rows, kv_heads, head_dim]; head_dim a multiple of 16. Row-invariant.
#pragma once

#include "prepare.h"

namespace streamfuse {

struct Qkv {
  ProductInput input;
  Packed weight;
  const float* cos;
  const float* sin;
  const float* bias;    // [(heads + 2 kv_heads) * head_dim], or null
  const float* q_norm;  // [head_dim], or null; [heads * head_dim] if norms_rows
  const float* k_norm;  // [head_dim], or null; [kv_heads * head_dim] if norms_rows
  int64_t heads;
  int64_t kv_heads;
  int64_t head_dim;
  float* query;
  float* key;
  float* value;
  bool norms_rows = false;
};

void qkv(const Qkv& args);

}  // namespace streamfuse
