// gated_mlp: x + down_proj(silu(gate) * up), gate and up from the normed x.
//
// Contract (docs/contracts.md, section 7): x and out float32 [rows, inputs]; gate_up packed with blocks of 16 rows of
// gate and up in turns, so that the thread that computes a group of 32 gates also rounds it. Row-invariant.
#pragma once

#include "prepare.h"

namespace streamfuse {

struct GatedMlp {
  ProductInput input;
  Packed gate_up;
  Packed down_proj;
  LowRank down_adapter;
  int64_t intermediate;  // a multiple of 32
  float* out;
};

void gated_mlp(const GatedMlp& args);

}  // namespace streamfuse
