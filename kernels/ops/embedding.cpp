#include "rounding.h"

#include "embedding.h"

#include "lane_kernels.h"

namespace streamfuse {
namespace {

// Element i of row r in one group of a tile, before it is scaled (docs/contracts.md, section 7).
int nibble_at(const uint8_t* tile, int64_t r, int64_t i) {
  return tile[64 * (i % 16 / 4) + 4 * r + i % 4] >> (i < 16 ? 0 : 4) & 15;
}
int byte_at(const uint8_t* tile, int64_t r, int64_t i) { return tile[64 * (i / 4) + 4 * r + i % 4] - 128; }

}  // namespace

void embedding(const Packed& weight, const int64_t* ids, int64_t rows, float* out) {
  const ProductKernels& kernels = *lane_kernels().products;
  const int64_t scales = weight.is_q8 ? 512 : 256;  // where those of the rows begin
  for (int64_t row = 0; row < rows; ++row) {
    const uint8_t* tile = weight.data + ids[row] / kTileRows * weight.groups * weight.group_bytes();
    const int64_t r = ids[row] % kTileRows;
    for (int64_t g = 0; g < weight.groups; ++g, tile += weight.group_bytes()) {
      const float d = kernels.half(tile + scales + 2 * r);
      const float m = weight.is_q8 ? 0.0f : kernels.half(tile + scales + 2 * kTileRows + 2 * r);
      for (int64_t i = 0; i < kGroupSize; ++i) {
        const float scaled = d * static_cast<float>(weight.is_q8 ? byte_at(tile, r, i) : nibble_at(tile, r, i));
        *out++ = weight.is_q8 ? scaled : scaled + m;
      }
    }
  }
}

}  // namespace streamfuse
