// gate_heads: the heads of an attention's result times the sigmoids of their gates.
//
// Contract (docs/contracts.md, section 7): x and out float32 [rows, heads * head_dim], gates float32 [rows, heads].
// Row-invariant.
#pragma once

#include <cstdint>

namespace streamfuse {

struct GateHeads {
  const float* x;
  const float* gates;
  float* out;
  int64_t rows;
  int64_t heads;
  int64_t head_dim;
};

void gate_heads(const GateHeads& args);

}  // namespace streamfuse
