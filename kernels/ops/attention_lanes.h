// Attention of a few rows over the keys and values of one kv head, and how these are rounded (kv_cache.h). Included by
// lane_kernels.cpp.
//
// Blocking changes speed and never a result: sums of integers are exact, and each row's groups are added in order.
#pragma once

#include "lane_kernels.h"
#include "lanes.h"

namespace streamfuse {
namespace STREAMFUSE_ISA {

extern const ProductKernels kProducts;  // product_kernels.cpp

namespace {

constexpr float kLeastValueScale = 1.17549435e-38f;  // below it a value counts as zeros, and 1 / scale stays finite
constexpr uint32_t kUnsigned = 0x80808080u;          // Q8_0 bytes are stored with 128 added
constexpr uint16_t kHalfOne = 0x3c00;

// The float16 nearest to x >= 0, half to even; 65504 for all that is larger.
SF_INLINE uint16_t half_of(float x) {
  uint32_t bits;
  if (x < 6.103515625e-5f) {  // 2^-14: below it float16 counts in steps of 2^-24
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

// One head's key as position t of its tiles [.., groups, 544].
void store_key_head(const float* key, int64_t dim, int64_t t, uint8_t* head) {
  const int64_t groups = (dim + kGroupSize - 1) / kGroupSize;
  uint8_t* tile = head + t / kTileRows * groups * kQ8TileBytes;
  const int64_t lane = t % kTileRows;
  for (int64_t g = 0; g < groups; ++g, tile += kQ8TileBytes) {
    Lanes low = load_up_to(key + g * kGroupSize, dim - g * kGroupSize);
    Lanes high = load_up_to(key + g * kGroupSize + kLanes, dim - g * kGroupSize - kLanes);
    const uint16_t half = half_of(largest(max(magnitude(low), magnitude(high))) / 127.0f);
    const float scale = half_at((const uint8_t*)&half);
    const Lanes most = splat(127.0f * scale), least = splat(-127.0f * scale);  // a scale that was rounded down
    low = max(least, min(most, low)), high = max(least, min(most, high));
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

// One head's value as position t of its tiles [tiles, blocks, 544], and its scale.
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
    uint32_t quads[kLanes];  // of each dimension: those of four positions
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

// Turns a line of scores into weights in place and returns their total. The line is padded to whole groups.
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

// Asks the memory for the values of 16 positions that begin with t.
SF_INLINE void ask_values(const uint8_t* head, int64_t tiles, int64_t blocks, int64_t t) {
  constexpr int64_t half = kQ8TileBytes / 2;
  const uint8_t* group = head + t / kCacheBlock * kQ8TileBytes + t % kCacheBlock / kTileRows * half;
  for (int64_t tile = 0; tile < tiles; ++tile, group += blocks * kQ8TileBytes)
    for (int64_t line = 0; line < half; line += 64) __builtin_prefetch(group + line, 0, 2);
}

// What a task computes with, in its scratch.
struct AttentionWork {
  const TreeAttention& a;
  const AttentionTask& task;
  AttentionRoom room;
  const uint8_t *keys, *values;  // of this kv head
  const float* scales;           // of its values
  int64_t group, queries, blocks;
  int64_t whole;  // cached blocks that are full; the tail begins behind them

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
  const AttentionRoom& room = w.room;
  const Lanes scale = splat(w.a.scale);
  // The products ask for what lies so far ahead, and nobody has asked for what comes first.
  const int64_t bytes = (length + kTileRows - 1) / kTileRows * groups * kQ8TileBytes;
  for (int64_t byte = 0; byte < kAhead && byte < bytes; byte += 64) __builtin_prefetch(w.keys + byte);
  for (int64_t q = 0; q < w.queries; ++q) {
    float* const padded = room.padded;
    memset(padded, 0, (size_t)(groups * kGroupSize) * sizeof(float));
    memcpy(padded, w.a.query + w.head(q), (size_t)dim * sizeof(float));
    kProducts.round(padded, room.query, q);
  }
  const Packed cached = {w.keys, 0, groups, true};
  for (int64_t t = 0; t < length; t += kTileRows) {
    ask_values(w.values, w.a.cache.value_tiles(), w.blocks, t);
    kProducts.product(cached, t / kTileRows, room.query, 0, w.queries, room.tile, false);
    for (int64_t q = 0; q < w.queries; ++q)
      store(room.scores + q * room.line + t, mul(load(room.tile + q * kLanes), scale));
  }

  int64_t last = -1;  // of the new rows, the last one that anybody here sees
  for (int64_t r = 0; r < w.task.rows; ++r)
    if (w.seen(r) > 0) last = w.visible(r)[w.seen(r) - 1] > last ? w.visible(r)[w.seen(r) - 1] : last;
  for (int64_t j = 0; j <= last; ++j) store_key_head(w.fresh(w.a.key, j), dim, j, room.fresh_keys);
  const Packed fresh = {room.fresh_keys, 0, groups, true};
  for (int64_t tile = 0; tile * kTileRows <= last; ++tile) {
    kProducts.product(fresh, tile, room.query, 0, w.queries, room.tile, false);
    for (int64_t q = 0; q < w.queries; ++q) {
      const int32_t* const rows = w.visible(q / w.group);
      float* const line = room.scores + q * room.line + length;
      for (int64_t n = 0; n < w.seen(q / w.group); ++n)
        if (rows[n] / kTileRows == tile) line[n] = room.tile[q * kLanes + rows[n] % kTileRows] * w.a.scale;
    }
  }
}

// Sums of the cached blocks that are whole, of all rows together.
void mix_cached(const AttentionWork& w) {
  const AttentionRoom& room = w.room;
  const int64_t tiles = w.a.cache.value_tiles();
  Rounded weights = room.weights;
  weights.groups = w.whole;
  for (int64_t q = 0; q < w.queries; ++q) {
    scale_by(room.scores + q * room.line, w.scales, w.whole * kCacheBlock);
    kProducts.round(room.scores + q * room.line, weights, q);
  }
  const Packed cached = {w.values, tiles, w.blocks, true};
  for (int64_t tile = 0; tile < tiles; ++tile)
    kProducts.product(cached, tile, weights, 0, w.queries, room.sums + tile * w.queries * kLanes, false);
}

// The rest of each row's sequence: what its cached part has beyond whole blocks, and its new rows.
void mix_tails(const AttentionWork& w) {
  const AttentionRoom& room = w.room;
  const int64_t dim = w.a.cache.head_dim, tiles = w.a.cache.value_tiles(), begin = w.whole * kCacheBlock;
  const int64_t left = w.a.cache_length - begin, blocks = room.tail_blocks;
  memset(room.tail_scales, 0, (size_t)(blocks * kCacheBlock) * sizeof(float));
  if (left > 0) {
    memcpy(room.tail_scales, w.scales + begin, (size_t)left * sizeof(float));
    for (int64_t tile = 0; tile < tiles; ++tile)
      memcpy(room.tail + tile * blocks * kQ8TileBytes, w.values + (tile * w.blocks + w.whole) * kQ8TileBytes,
             kQ8TileBytes);
  }
  const int32_t* before = nullptr;
  int64_t known = 0;  // new rows that the tail holds, those of the row before
  for (int64_t r = 0; r < w.task.rows; ++r) {
    const int32_t* const rows = w.visible(r);
    const int64_t seen = w.seen(r), length = left + seen;
    int64_t n = 0;
    while (n < known && n < seen && rows[n] == before[n]) ++n;
    for (; n < seen; ++n)
      store_value_head(w.fresh(w.a.value, rows[n]), dim, left + n, blocks, room.tail, room.tail_scales);
    before = rows, known = seen;
    Rounded weights = room.tail_weights;
    weights.groups = (length + kCacheBlock - 1) / kCacheBlock;
    const int64_t padded = weights.groups * kCacheBlock;
    for (int64_t g = 0; g < w.group; ++g) {
      float* const line = room.scores + (r * w.group + g) * room.line + begin;
      scale_by(line, room.tail_scales, padded);
      for (int64_t t = length; t < padded; ++t) line[t] = 0.0f;  // where other rows' values lie
      kProducts.round(line, weights, g);
    }
    const Packed tail = {room.tail, tiles, blocks, true};
    for (int64_t tile = 0; tile < tiles; ++tile)
      kProducts.product(tail, tile, weights, 0, w.group, room.sums + (tile * w.queries + r * w.group) * kLanes, true);
  }
}

void attend(const TreeAttention& a, const AttentionTask& task, uint8_t* scratch) {
  const int64_t group = a.query_heads / a.cache.kv_heads;
  const AttentionWork w = {a,
                           task,
                           AttentionRoom::at(a, task.rows, scratch),
                           a.key_cache + a.cache.keys_of(task.kv_head),
                           a.value_cache + a.cache.values_of(task.kv_head),
                           (const float*)(a.value_cache + a.cache.scales_of(task.kv_head)),
                           group,
                           task.rows * group,
                           a.cache.blocks(),
                           a.cache_length / kCacheBlock};
  const AttentionRoom& room = w.room;
  score(w);
  for (int64_t q = 0; q < w.queries; ++q) {
    const int64_t length = a.cache_length + w.seen(q / group);
    room.totals[q] = length == 0 ? 1.0f : weigh(room.scores + q * room.line, length);
  }
  mix_cached(w);
  mix_tails(w);
  for (int64_t q = 0; q < w.queries; ++q) {
    float* const out = a.out + w.head(q);
    for (int64_t d = 0; d < a.cache.head_dim; d += kLanes) {
      const float* const sums = room.sums + (d / kLanes * w.queries + q) * kLanes;
      const Lanes mean = div(load(sums), splat(room.totals[q]));
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
