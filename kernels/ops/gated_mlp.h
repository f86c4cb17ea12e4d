// gated_mlp: x + down_proj(silu(gate) * up), with gate and up computed from the normed x. gated_branch: the same
// without the addition of x and with a choice of activation; the norm may be missing.
//
// Contract (docs/contracts.md, section 7): x and out float32 [rows, inputs]; gate_up is packed with alternating blocks
// of 16 rows of gate and of up, so that the thread that computes a group of 32 gates also quantizes it. Row-invariant.
#pragma once

#include "prepare.h"
#include "product_kernels.h"

namespace streamfuse {

struct GatedMlp {
  ProductInput input;
  Packed gate_up;
  Packed down_proj;
  LowRank down_adapter;
  int64_t intermediate;  // a multiple of 32
  float* out;
  Activation activation = Activation::kSilu;
  bool adds_input = true;
};

void gated_mlp(const GatedMlp& args);

}  // namespace streamfuse
