// Attention of a few rows over the keys and values of one kv head, and quantization of new keys and values
// (kv_cache.h). Included by lane_kernels.cpp.
//
// Blocking affects speed but not results: integer sums are exact, and each row's groups are added in order.
#pragma once

#include "lane_kernels.h"
#include "lanes.h"

namespace streamfuse {
namespace STREAMFUSE_ISA {

extern const ProductKernels kProducts;  // product_kernels.cpp

namespace {

constexpr float kLeastValueScale = 1.17549435e-38f;  // below it the value is stored as zeros; 1 / scale stays finite
constexpr uint32_t kUnsigned = 0x80808080u;          // Q8_0 bytes are stored with 128 added
constexpr uint16_t kHalfOne = 0x3c00;

// The float16 nearest to x >= 0, half to even, at most 65504.
SF_INLINE uint16_t half_of(float x) {
  uint32_t bits;
  if (x < 6.103515625e-5f) {  // 2^-14: below it, float16 has steps of 2^-24
    const float shifted = x * 16777216.0f + 12582912.0f;
    memcpy(&bits, &shifted, 4);
    return (uint16_t)bits;
  }
  memcpy(&bits, &x, 4);
  if (bits >= 0x477fe000u) return 0x7bff;
  return (uint16_t)((bits - 0x38000000u + 0xfffu + (bits >> 13 & 1)) >> 13);
}

SF_INLINE Lanes load_up_to(const float* p, int64_t count) {
  return count >= kLanes ? load(p) : load_first(p, count > 0 ? (int)count : 0);
}

// Stores one head's key as position t of its tiles [.., groups, 544].
void store_key_head(const float* key, int64_t dim, int64_t t, uint8_t* head) {
  const int64_t groups = (dim + kGroupSize - 1) / kGroupSize;
  uint8_t* tile = head + t / kTileRows * groups * kQ8TileBytes;
  const int64_t lane = t % kTileRows;
  for (int64_t g = 0; g < groups; ++g, tile += kQ8TileBytes) {
    Lanes low = load_up_to(key + g * kGroupSize, dim - g * kGroupSize);
    Lanes high = load_up_to(key + g * kGroupSize + kLanes, dim - g * kGroupSize - kLanes);
    const uint16_t half = half_of(largest(max(magnitude(low), magnitude(high))) / 127.0f);
    const float scale = half_at((const uint8_t*)&half);
    const Lanes most = splat(127.0f * scale), least = splat(-127.0f * scale);  // the scale may be rounded down
    low = max(least, min(most, low));
    high = max(least, min(most, high));
    const float inverse = scale == 0.0f ? 0.0f : 1.0f / scale;
    int8_t q[kGroupSize];
    round_lanes(low, inverse, q);
    round_lanes(high, inverse, q + kLanes);
    for (int i = 0; i < kGroupSize / 4; ++i) {
      uint32_t quad;
      memcpy(&quad, q + 4 * i, 4);
      quad ^= kUnsigned;
      memcpy(tile + 64 * i + 4 * lane, &quad, 4);
    }
    memcpy(tile + 512 + 2 * lane, &half, 2);
  }
}

// Stores one head's value as position t of its tiles [tiles, blocks, 544], and its scale.
void store_value_head(const float* value, int64_t dim, int64_t t, int64_t blocks, uint8_t* head, float* scales) {
  Lanes top = splat(0.0f);
  for (int64_t d = 0; d < dim; d += kLanes) top = max(top, magnitude(load_up_to(value + d, dim - d)));
  float scale = largest(top) / 127.0f;
  if (scale < kLeastValueScale) scale = 0.0f;
  const float inverse = scale == 0.0f ? 0.0f : 1.0f / scale;
  scales[t] = scale;
  const int64_t place = t % kCacheBlock;
  const int shift = 8 * (int)(place % 4);
  uint8_t* group = head + t / kCacheBlock * kQ8TileBytes;
  for (int64_t d = 0; d < dim; d += kLanes, group += blocks * kQ8TileBytes) {
    int8_t q[kLanes];
    uint32_t quads[kLanes];  // four positions of each dimension
    round_lanes(load_up_to(value + d, dim - d), inverse, q);
    memcpy(quads, group + 64 * (place / 4), sizeof quads);
    for (int i = 0; i < kLanes; ++i)
      quads[i] = (quads[i] & ~(0xffu << shift)) | (uint32_t)(uint8_t)(q[i] ^ 0x80) << shift;
    memcpy(group + 64 * (place / 4), quads, sizeof quads);
    if (place > 0) continue;
    uint16_t ones[kLanes];
    for (int i = 0; i < kLanes; ++i) ones[i] = kHalfOne;
    memcpy(group + 512, ones, sizeof ones);
  }
}

// Converts a line of scores to softmax weights in place and returns their sum. The line is padded to whole groups.
float weigh(float* scores, int64_t length) {
  const int64_t whole = length / kLanes * kLanes, padded = (length + kLanes - 1) / kLanes * kLanes;
  Lanes top = splat(scores[0]);
  for (int64_t t = 0; t < whole; t += kLanes) top = max(top, load(scores + t));
  float best = largest(top);
  for (int64_t t = whole; t < length; ++t) best = SF_GREATER(scores[t], best);
  for (int64_t t = length; t < padded; ++t) scores[t] = -__builtin_inff();  // weight 0
  const Lanes shift = splat(-best);
  Lanes total = splat(0.0f);
  for (int64_t t = 0; t < padded; t += kLanes) {
    const Lanes weight = exp_of_nonpositive(add(load(scores + t), shift));
    store(scores + t, weight);
    total = add(total, weight);
  }
  if (padded % kGroupSize != 0) store(scores + padded, splat(0.0f));
  return sum(total);
}

SF_INLINE void scale_by(float* weights, const float* scales, int64_t count) {
  for (int64_t t = 0; t < count; t += kLanes) store(weights + t, mul(load(weights + t), load(scales + t)));
}

// Prefetches the values of 16 positions starting at t.
SF_INLINE void prefetch_values(const uint8_t* head, int64_t tiles, int64_t blocks, int64_t t) {
  constexpr int64_t half = kQ8TileBytes / 2;
  const uint8_t* group = head + t / kCacheBlock * kQ8TileBytes + t % kCacheBlock / kTileRows * half;
  for (int64_t tile = 0; tile < tiles; ++tile, group += blocks * kQ8TileBytes)
    for (int64_t line = 0; line < half; line += 64) __builtin_prefetch(group + line, 0, 2);
}

// The inputs, buffers and sizes of one task.
struct AttentionWork {
  const TreeAttention& a;
  const AttentionTask& task;
  AttentionBuffers buffers;
  const uint8_t *keys, *values;  // of this kv head
  const float* scales;           // of its values
  int64_t group, queries, blocks;
  int64_t whole;  // number of full cached blocks; the tail starts after them

  // Where position t of the sequence is in the cache.
  SF_INLINE_MEMBER int64_t place(int64_t t) const {
    const int64_t at = a.begin + t;
    return at < a.cache.capacity ? at : at - a.cache.capacity;
  }
  SF_INLINE_MEMBER int64_t seen(int64_t row) const { return task.starts[row + 1] - task.starts[row]; }
  SF_INLINE_MEMBER const int32_t* visible(int64_t row) const { return task.visible_rows + task.starts[row]; }
  SF_INLINE_MEMBER int64_t head(int64_t query) const {
    return ((task.first_row + query / group) * a.query_heads + task.kv_head * group + query % group) * a.cache.head_dim;
  }
  SF_INLINE_MEMBER const float* fresh(const float* rows, int64_t row) const {
    return rows + (row * a.cache.kv_heads + task.kv_head) * a.cache.head_dim;
  }
};

void score(const AttentionWork& w) {
  const int64_t dim = w.a.cache.head_dim, groups = w.a.cache.key_groups(), length = w.a.cache_length;
  const AttentionBuffers& buffers = w.buffers;
  const Lanes scale = splat(w.a.scale);
  // A product prefetches kAhead bytes ahead, so its first kAhead bytes are prefetched here.
  const int64_t tile_bytes = groups * kQ8TileBytes, to_end = w.a.cache.capacity - w.a.begin;
  const int64_t bytes = ((length < to_end ? length : to_end) + kTileRows - 1) / kTileRows * tile_bytes;
  const uint8_t* const first = w.keys + w.a.begin / kTileRows * tile_bytes;
  for (int64_t byte = 0; byte < kAhead && byte < bytes; byte += 64) __builtin_prefetch(first + byte);
  for (int64_t q = 0; q < w.queries; ++q) {
    float* const padded = buffers.padded;
    memset(padded, 0, (size_t)(groups * kGroupSize) * sizeof(float));
    memcpy(padded, w.a.query + w.head(q), (size_t)dim * sizeof(float));
    kProducts.round(padded, buffers.query, q);
  }
  const Packed cached = Packed::of_cache(w.keys, 0, groups);
  for (int64_t t = 0; t < length; t += kTileRows) {
    const int64_t place = w.place(t);
    prefetch_values(w.values, w.a.cache.value_tiles(), w.blocks, place);
    kProducts.product(cached, place / kTileRows, buffers.query, 0, w.queries, buffers.tile, false);
    for (int64_t q = 0; q < w.queries; ++q)
      store(buffers.scores + q * buffers.line + t, mul(load(buffers.tile + q * kLanes), scale));
  }

  int64_t last = -1;  // the last new row that a row of this task attends to
  for (int64_t r = 0; r < w.task.rows; ++r)
    if (w.seen(r) > 0) last = w.visible(r)[w.seen(r) - 1] > last ? w.visible(r)[w.seen(r) - 1] : last;
  for (int64_t j = 0; j <= last; ++j) store_key_head(w.fresh(w.a.key, j), dim, j, buffers.fresh_keys);
  const Packed fresh = Packed::of_cache(buffers.fresh_keys, 0, groups);
  for (int64_t tile = 0; tile * kTileRows <= last; ++tile) {
    kProducts.product(fresh, tile, buffers.query, 0, w.queries, buffers.tile, false);
    for (int64_t q = 0; q < w.queries; ++q) {
      const int32_t* const rows = w.visible(q / w.group);
      float* const line = buffers.scores + q * buffers.line + length;
      for (int64_t n = 0; n < w.seen(q / w.group); ++n)
        if (rows[n] / kTileRows == tile) line[n] = buffers.tile[q * kLanes + rows[n] % kTileRows] * w.a.scale;
    }
  }
}

// Weighted sums over the full cached blocks, for all rows together: those up to the end of the cache, then those that a
// ring has at its beginning.
void mix_cached(const AttentionWork& w) {
  const AttentionBuffers& buffers = w.buffers;
  const int64_t tiles = w.a.cache.value_tiles();
  int64_t first = 0;  // block
  do {
    const int64_t place = w.place(first * kCacheBlock) / kCacheBlock, to_end = w.blocks - place;
    Rounded weights = buffers.weights;
    weights.groups = w.whole - first < to_end ? w.whole - first : to_end;
    for (int64_t q = 0; q < w.queries; ++q) {
      float* const line = buffers.scores + q * buffers.line + first * kCacheBlock;
      scale_by(line, w.scales + place * kCacheBlock, weights.groups * kCacheBlock);
      kProducts.round(line, weights, q);
    }
    // Groups of zeros add nothing.
    const Packed cached = Packed::of_cache(w.values + place * kQ8TileBytes, tiles, w.blocks);
    for (int64_t tile = 0; tile < tiles; ++tile)
      kProducts.product(cached, tile, weights, 0, w.queries, buffers.sums + tile * w.queries * kLanes, first > 0);
    first += weights.groups;
  } while (first < w.whole);
}

// Adds the rest of each row's sequence: cached positions after the full blocks, and new rows.
void mix_tails(const AttentionWork& w) {
  const AttentionBuffers& buffers = w.buffers;
  const int64_t dim = w.a.cache.head_dim, tiles = w.a.cache.value_tiles(), begin = w.whole * kCacheBlock;
  const int64_t left = w.a.cache_length - begin, place = w.place(begin), blocks = buffers.tail_blocks;
  memset(buffers.tail_scales, 0, (size_t)(blocks * kCacheBlock) * sizeof(float));
  if (left > 0) {
    memcpy(buffers.tail_scales, w.scales + place, (size_t)left * sizeof(float));
    for (int64_t tile = 0; tile < tiles; ++tile)
      memcpy(buffers.tail + tile * blocks * kQ8TileBytes,
             w.values + (tile * w.blocks + place / kCacheBlock) * kQ8TileBytes, kQ8TileBytes);
  }
  const int32_t* before = nullptr;
  int64_t known = 0;  // number of new rows in the tail, from the previous row
  for (int64_t r = 0; r < w.task.rows; ++r) {
    const int32_t* const rows = w.visible(r);
    const int64_t seen = w.seen(r), length = left + seen;
    int64_t n = 0;
    while (n < known && n < seen && rows[n] == before[n]) ++n;
    for (; n < seen; ++n)
      store_value_head(w.fresh(w.a.value, rows[n]), dim, left + n, blocks, buffers.tail, buffers.tail_scales);
    before = rows;
    known = seen;
    Rounded weights = buffers.tail_weights;
    weights.groups = (length + kCacheBlock - 1) / kCacheBlock;
    const int64_t padded = weights.groups * kCacheBlock;
    for (int64_t g = 0; g < w.group; ++g) {
      float* const line = buffers.scores + (r * w.group + g) * buffers.line + begin;
      scale_by(line, buffers.tail_scales, padded);
      for (int64_t t = length; t < padded; ++t) line[t] = 0.0f;  // positions with values of other rows
      kProducts.round(line, weights, g);
    }
    const Packed tail = Packed::of_cache(buffers.tail, tiles, blocks);
    for (int64_t tile = 0; tile < tiles; ++tile)
      kProducts.product(tail, tile, weights, 0, w.group, buffers.sums + (tile * w.queries + r * w.group) * kLanes,
                        true);
  }
}

void attend(const TreeAttention& a, const AttentionTask& task, uint8_t* scratch) {
  const int64_t group = a.query_heads / a.cache.kv_heads;
  const AttentionWork w = {a,
                           task,
                           AttentionBuffers::at(a, task.rows, scratch),
                           a.key_cache + a.cache.keys_of(task.kv_head),
                           a.value_cache + a.cache.values_of(task.kv_head),
                           (const float*)(a.value_cache + a.cache.scales_of(task.kv_head)),
                           group,
                           task.rows * group,
                           a.cache.blocks(),
                           a.cache_length / kCacheBlock};
  const AttentionBuffers& buffers = w.buffers;
  score(w);
  for (int64_t q = 0; q < w.queries; ++q) {
    const int64_t length = a.cache_length + w.seen(q / group);
    float* const line = buffers.scores + q * buffers.line;
    for (int64_t t = 0; t < a.first_of(length); ++t) line[t] = -__builtin_inff();  // weight 0
    buffers.totals[q] = length == 0 ? 1.0f : weigh(line, length);
  }
  mix_cached(w);
  mix_tails(w);
  for (int64_t q = 0; q < w.queries; ++q) {
    float* const out = a.out + w.head(q);
    for (int64_t d = 0; d < a.cache.head_dim; d += kLanes) {
      const float* const sums = buffers.sums + (d / kLanes * w.queries + q) * kLanes;
      const Lanes mean = div(load(sums), splat(buffers.totals[q]));
      if (a.cache.head_dim - d < kLanes)
        store_first(out + d, mean, (int)(a.cache.head_dim - d));
      else
        store(out + d, mean);
    }
  }
}

}  // namespace
}  // namespace STREAMFUSE_ISA
}  // namespace streamfuse
