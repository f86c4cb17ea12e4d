// gate_heads: attention output, each head, or each number (head_dim 1), multiplied by the sigmoid of its gate.
// silu_gate: attention output, each number multiplied by the SiLU of its gate.
// gelu_gate: each number of a row multiplied by the GELU (tanh) of its gate.
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
// head_dim is 1, and out is neither x nor gates.
void silu_gate(const GateHeads& args);
// head_dim is 1.
void gelu_gate(const GateHeads& args);

}  // namespace streamfuse
