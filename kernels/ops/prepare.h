// The rows that a packed product takes, made ready once for all its outputs: normed, rounded, adapters' inner values.
#pragma once

#include "packed.h"
#include "scratch.h"

namespace streamfuse {

struct ProductInput {
  const float* x;     // [rows, inputs]
  const float* norm;  // [inputs], or null: x as it is
  float eps;
  int64_t rows;
  int64_t inputs;  // a multiple of 32
  LowRank adapter;

  int64_t adapted_rows() const { return adapter.rank == 0 || adapter.first_row >= rows ? 0 : rows - adapter.first_row; }
};

Rounded take_rounded(Scratch& scratch, int64_t rows, int64_t inputs);
size_t rounded_bytes(int64_t rows, int64_t inputs);

// inner [rows, parts, rank] = down x, for `rows` adapted rows x [rows, inputs].
void adapter_inner(const LowRank& adapter, const float* x, int64_t rows, int64_t inputs, float* inner);

Prepared prepare(const ProductInput& input, Scratch& scratch);
size_t prepared_bytes(const ProductInput& input);

// A tile's outputs of all rows, the adapter of projection `part` included: acc [rows, 16].
void product_tile(const Packed& weight, const ProductInput& input, const Prepared& ready, int64_t tile, int64_t part,
                  float* acc);

}  // namespace streamfuse
