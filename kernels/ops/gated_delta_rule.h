// gated_delta_rule: the linear attention of Qwen3.5 (Gated DeltaNet, arXiv 2412.06464, eq. 10) over a tree of rows.
//
// Contract (docs/contracts.md, section 6). A row [2 kv heads * head_dim] is its key and its value, concatenated: the
// gates a, then b, of each value head, kGateStride numbers apart, then the `channels` of q, k and v, then zeros. Caches
// and visible as in tree_attention.h, taps [count, channels], out [rows, value heads * value_dim]. After quantization:
//   c = SiLU(taps[0] * row_{n - count + 1} + ... + taps[count - 1] * row_n), added from left to right, of the channels
//       of a row's canonical sequence, with zeros before its beginning; q and k are heads of c with length 1
//   S = e^g S' + k (beta (v - e^g S'^T k))^T, e^g = exp(-rate * softplus(a + dt_bias)), beta = sigmoid(b), S' being the
//       state of the row's parent
//   out = RMSNorm(S^T q / sqrt(key_dim)) of each value head
// Value head i uses q and k of key head i * key_heads / value_heads (rounded down). A row's result depends on the row
// and its sequence only.
//
// There are two states [2, kStateHeader + state_size]: the newer one after cache_length tokens, and one that is at most
// `rewindable` tokens older. Each has the number of its tokens, zeros up to kStateHeader, the channels of the last
// count - 1 rows, and S [value heads, key_dim, value_dim]. A call first updates both, from cached rows only. So they do
// not depend on rejected drafts, and a call may be repeated.
#pragma once

#include <cstdint>

#include "kv_cache.h"

namespace streamfuse {

constexpr int64_t kGateStride = kGroupSize;  // a gate in the key half of a row has a scale of its own
constexpr int64_t kStateHeader = 16;         // floats: a cache line
constexpr int64_t kMostTaps = 16;

struct GatedDeltaRule {
  const float* key;
  const float* value;
  const uint8_t* key_cache;
  const uint8_t* value_cache;
  const bool* visible;
  int64_t visible_stride;  // from one row of visible to the next; at least rows
  float* states;
  const float* taps;
  const float* rates;    // [value heads]: exp(A_log)
  const float* dt_bias;  // [value heads]
  const float* norm;     // [value_dim]
  float eps;             // of the norm
  float* out;
  int64_t count;  // of taps
  int64_t cache_length;
  int64_t rows;
  int64_t key_heads, value_heads, key_dim, value_dim;
  int64_t rewindable;
  KvShape cache;

  int64_t channels() const { return 2 * key_heads * key_dim + value_heads * value_dim; }
  int64_t row_size() const { return 2 * cache.kv_heads * cache.head_dim; }
  int64_t first_channel() const { return 2 * kGateStride * value_heads; }
  int64_t history_size() const { return (count - 1) * channels(); }
  int64_t state_size() const { return history_size() + value_heads * key_dim * value_dim; }
  float* older() const { return states; }
  float* newer() const { return states + kStateHeader + state_size(); }
};

// Why the states cannot be updated to cache_length; null if they can.
const char* why_not_updatable(const GatedDeltaRule& args);

// Uses the thread pool (team.h).
void gated_delta_rule(const GatedDeltaRule& args);

// The rows of gates and channels as keys and values: projected [rows, 2 value heads + channels] -> key and value [rows,
// kv heads, head_dim].
void delta_rows(const float* projected, int64_t rows, int64_t value_heads, int64_t channels, const KvShape& cache,
                float* key, float* value);

}  // namespace streamfuse
