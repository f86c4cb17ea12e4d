// gate_heads: attention output, each head scaled by the sigmoid of its gate.
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
