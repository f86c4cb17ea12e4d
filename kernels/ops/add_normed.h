// add_normed: residual + rms_norm(x), for layers whose norms come before the residual addition.
//
// Contract (docs/contracts.md, section 7): x, residual and out float32 [rows, size], weight [size]. Row-invariant.
#pragma once

#include <cstdint>

namespace streamfuse {

struct AddNormed {
  const float* x;
  const float* weight;
  float eps;
  const float* residual;
  int64_t rows;
  int64_t size;
  float* out;
};

void add_normed(const AddNormed& args);

}  // namespace streamfuse
