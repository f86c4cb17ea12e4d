// What the products read: packed weights (export/operators/packing.py, docs/contracts.md section 7) and rounded activations.
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace streamfuse {

constexpr int64_t kTileRows = 16, kGroupSize = 32;
constexpr int64_t kQ4TileBytes = 320, kQ8TileBytes = 544;  // of one group of one tile
constexpr int64_t kAhead = 5120;                           // bytes of weights from a load to its prefetch

struct Packed {
  const uint8_t* data;
  int64_t tiles;
  int64_t groups;
  bool is_q8;

  int64_t group_bytes() const { return is_q8 ? kQ8TileBytes : kQ4TileBytes; }

  // Asks the memory for what a product that begins with this tile cannot ask for ahead of time.
  void ask(int64_t tile) const {
    const uint8_t* first = data + tile * groups * group_bytes();
    for (int64_t byte = 0; byte < kAhead; byte += 64) __builtin_prefetch(first + byte);
  }
};

// Activations of `rows` rows in int8, group by group: q[g][row][32], and scale, share, start [g][row].
struct Rounded {
  int8_t* q;
  float* scale;    // x = scale * q, nearly
  float* share;    // scale * sum(q), what a group's minimum is multiplied with
  int32_t* start;  // -128 * sum(q): takes back the offset of Q8_0 values, which are stored unsigned
  int64_t rows;
  int64_t groups;
};

// Low-rank adapters in float16 of the `parts` projections that a product joins: y += up^T (down x) in float32, where a
// tile of outputs has the inner values of its own part. Absent where rank is 0.
struct LowRank {
  const uint16_t* down;  // [parts, rank, inputs]
  const uint16_t* up;    // [tiles, rank, 16]
  int64_t parts;
  int64_t rank;
  int64_t first_row;  // rows from here on are adapted

  int64_t inner() const { return parts * rank; }  // values of one row between down and up
};

// The rows that share a product's weights, ready for it.
struct Prepared {
  Rounded rounded;
  float* normed;  // [rows, inputs]; null where there is no norm
  float* inner;   // down x of the adapted rows, [rows - first_row, parts, rank]; null without
};

}  // namespace streamfuse
