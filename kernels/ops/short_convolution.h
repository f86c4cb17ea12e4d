// short_convolution: the gated short convolution that replaces attention in most layers of LFM2 (arXiv 2511.23404).
//
// Contract (docs/contracts.md, section 6). query [rows, channels], key and value [rows, kv heads, head_dim], caches and
// visible as in tree_attention.h, taps [count, channels], out [rows, channels]. Key and value are the halves of the
// convolution's input. With the canonical sequence of a row, input_1 to input_n after quantization:
//   out = query * (taps[0] * input_{n - count + 1} + ... + taps[count - 1] * input_n), added from left to right
// without the terms before the sequence's beginning. So a row's result depends on the row and its sequence only, as
// that of tree_attention. A cache of at least count + 32 positions may be a ring.
#pragma once

#include <cstdint>

#include "kv_cache.h"

namespace streamfuse {

struct ShortConvolution {
  const float* query;
  const float* key;
  const float* value;
  const uint8_t* key_cache;
  const uint8_t* value_cache;
  const bool* visible;
  int64_t visible_stride;  // from one row of visible to the next; at least rows
  const float* taps;
  float* out;
  int64_t count;  // of taps
  int64_t cache_length;
  int64_t rows;
  KvShape cache;

  bool can_be_ring() const { return count <= cache.capacity - kCacheBlock; }
  int64_t half() const { return cache.kv_heads * cache.head_dim; }  // of the channels
};

// Uses the thread pool (team.h) if there are many rows.
void short_convolution(const ShortConvolution& args);

}  // namespace streamfuse
