// Inputs of the products: packed weights (export/operators/packing.py, docs/contracts.md section 7) and quantized
// activations.
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace streamfuse {

constexpr int64_t kTileRows = 16, kGroupSize = 32;
constexpr int64_t kQ4TileBytes = 320, kQ8TileBytes = 544;  // of one group of one tile

// Prefetch distances in bytes of weights, into the L1 and into the L2 cache. With both, weights from memory are read
// faster than with either alone. The distances are short, since every product also prefetches this far beyond its end.
constexpr int64_t kAhead = 5120, kAheadL2 = 8192;

struct Packed {
  const uint8_t* data;
  int64_t tiles;
  int64_t groups;
  bool is_q8;
  bool is_weight = true;  // false: keys or values

  // Keys or values, which have the layout of eight-bit weights. They are read in shorter pieces, so they are not
  // prefetched into the L2 cache.
  static Packed of_cache(const uint8_t* data, int64_t tiles, int64_t groups) {
    return {data, tiles, groups, true, false};
  }

  int64_t group_bytes() const { return is_q8 ? kQ8TileBytes : kQ4TileBytes; }

  // Prefetches the first kAhead bytes of a product that starts with this tile.
  void prefetch(int64_t tile) const {
    const uint8_t* first = data + tile * groups * group_bytes();
    for (int64_t byte = 0; byte < kAhead; byte += 64) __builtin_prefetch(first + byte);
  }
};

// Activations of `rows` rows in int8, by group: q[g][row][32], and scale, share, start [g][row].
struct Rounded {
  int8_t* q;
  float* scale;    // x is about scale * q
  float* share;    // scale * sum(q), the factor of a group's minimum (m of Q4_1)
  int32_t* start;  // -128 * sum(q), which cancels the offset of Q8_0 values, stored as unsigned
  int64_t rows;
  int64_t groups;
};

// Low-rank adapters of the `parts` projections that a product combines, in float16 or int8: y += up^T (down x) in
// float32. Each tile of outputs uses the inner values of its own part. There is no adapter if rank is 0.
struct LowRank {
  const uint8_t* down;  // [parts, rank, inputs]; in int8, a float32 after each row multiplies its inner value
  const uint8_t* up;    // [tiles, rank, 16]
  int64_t parts;
  int64_t rank;
  int64_t first_row;  // rows from here on are adapted
  bool is_int8;

  int64_t inner() const { return parts * rank; }  // values of one row between down and up
  const uint8_t* down_row(int64_t row, int64_t inputs) const {
    return down + row * (is_int8 ? inputs + static_cast<int64_t>(sizeof(float)) : 2 * inputs);
  }
  const uint8_t* up_tile(int64_t tile) const { return up + tile * rank * kTileRows * (is_int8 ? 1 : 2); }
};

// The prepared rows of a product.
struct Prepared {
  Rounded rounded;
  float* normed;  // [rows, inputs]; null without a norm
  float* inner;   // down x of the adapted rows, [rows - first_row, parts, rank]; null without an adapter
};

}  // namespace streamfuse
