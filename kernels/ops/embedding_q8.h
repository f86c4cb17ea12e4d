// embedding_q8: rows of a packed Q8_0 matrix, dequantized. Contract: docs/contracts.md, section 7.
#pragma once

#include "packed.h"

namespace streamfuse {

// ids int64 [rows], each below 16 * weight.tiles; out float32 [rows, 32 * weight.groups].
void embedding_q8(const Packed& weight, const int64_t* ids, int64_t rows, float* out);

}  // namespace streamfuse
