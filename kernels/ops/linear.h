// linear and biased_linear: y = W . round(rms_norm(x)) + up^T (down x') in adapted rows + bias + residual, in this
// order; W is packed with 4 or 8 bits.
//
// Contract (docs/contracts.md, section 7): x float32 [rows, inputs], out and residual float32 [rows, outputs].
// Row-invariant: a row's bits depend on that row only, not on the instruction set or the number of threads.
#pragma once

#include "prepare.h"

namespace streamfuse {

struct Linear {
  ProductInput input;
  Packed weight;
  int64_t outputs;
  const float* bias;      // [outputs], or null
  const float* residual;  // or null; must not be `out`
  float* out;
};

void linear(const Linear& args);

// The same with the caller's scratch, which must have room for it.
void linear(const Linear& args, Scratch& scratch);
size_t linear_bytes(const Linear& args);

// The same over prepared rows.
void linear_prepared(const Linear& args, const Prepared& ready, Scratch& scratch);
size_t linear_scratch(int64_t rows);

}  // namespace streamfuse
