// embedding_q8 and embedding_q4: rows of a packed Q8_0 or Q4_1 matrix, dequantized. Contract: docs/contracts.md,
// section 7.
#pragma once

#include "packed.h"

namespace streamfuse {

// ids int64 [rows], each below 16 * weight.tiles; out float32 [rows, 32 * weight.groups].
void embedding(const Packed& weight, const int64_t* ids, int64_t rows, float* out);

}  // namespace streamfuse
