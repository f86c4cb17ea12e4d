// Keys and values of one layer in int8, in the layout of packed weights (packed.h, Q8_0), so that attention is two
// products with quantized rows: scores = K round(query), output = V^T round(weights).
//
// Per kv head, with the positions of the cache in blocks of 32:
//   keys    [capacity / 16][groups of 32 dimensions][544]: a tile's outputs are 16 positions, its inputs dimensions.
//           Each position and group has its own scale, float16.
//   values  [tiles of 16 dimensions][capacity / 32][544]: a tile's outputs are dimensions, its inputs 32 positions; its
//           scales are 1. After the tiles there is one scale per position, float32 [capacity]; attention multiplies the
//           position's weight by it before quantizing the weight.
// Padding dimensions are zero. One position takes 34 bytes per group of keys, 17 per tile of values, and 4 for the
// scale.
#pragma once

#include "packed.h"

namespace streamfuse {

constexpr int64_t kCacheBlock = kGroupSize;  // positions; the capacity is a multiple of it

// Its functions are force-inlined, because files of all instruction sets call them (lanes.h).
struct KvShape {
#define SF_FORCED __attribute__((always_inline))
  int64_t capacity;  // positions; a ring has fewer than the context, and position t is at t modulo `capacity`
  int64_t kv_heads;
  int64_t head_dim;

  SF_FORCED int64_t key_groups() const { return (head_dim + kGroupSize - 1) / kGroupSize; }
  SF_FORCED int64_t value_tiles() const { return (head_dim + kTileRows - 1) / kTileRows; }
  SF_FORCED int64_t blocks() const { return capacity / kCacheBlock; }
  // Bytes of one position and head; values include their scale.
  SF_FORCED int64_t key_bytes() const { return key_groups() * kQ8TileBytes / kTileRows; }
  SF_FORCED int64_t value_bytes() const { return value_tiles() * kQ8TileBytes / kCacheBlock + 4; }
  // Byte offsets of a head's keys, values and value scales.
  SF_FORCED int64_t keys_of(int64_t head) const { return head * capacity * key_bytes(); }
  SF_FORCED int64_t values_of(int64_t head) const { return head * capacity * value_bytes(); }
  SF_FORCED int64_t scales_of(int64_t head) const { return values_of(head) + value_tiles() * blocks() * kQ8TileBytes; }
#undef SF_FORCED
};

// Writes one position's row [kv_heads, head_dim] of keys, or of values, into a cache [kv_heads, capacity, bytes].
void store_key(const KvShape& shape, const float* row, int64_t position, uint8_t* cache);
void store_value(const KvShape& shape, const float* row, int64_t position, uint8_t* cache);
// Reads one position and head [head_dim] as it was stored, after quantization.
void load_key(const KvShape& shape, const uint8_t* cache, int64_t head, int64_t position, float* key);
void load_value(const KvShape& shape, const uint8_t* cache, int64_t head, int64_t position, float* value);
// Prefetches the cache lines that store_key and store_value write. They are far apart and no longer in the processor's
// caches.
void prefetch_key(const KvShape& shape, int64_t position, const uint8_t* cache);
void prefetch_value(const KvShape& shape, int64_t position, const uint8_t* cache);

}  // namespace streamfuse
