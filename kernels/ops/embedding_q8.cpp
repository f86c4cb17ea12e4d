#include "rounding.h"

#include "embedding_q8.h"

#include "lane_kernels.h"

namespace streamfuse {

void embedding_q8(const Packed& weight, const int64_t* ids, int64_t rows, float* out) {
  for (int64_t row = 0; row < rows; ++row) {
    const uint8_t* tile = weight.data + ids[row] / kTileRows * weight.groups * kQ8TileBytes;
    const int64_t r = ids[row] % kTileRows;
    for (int64_t g = 0; g < weight.groups; ++g, tile += kQ8TileBytes) {
      const float d = lane_kernels().products->half(tile + 512 + 2 * r);
      for (int64_t i = 0; i < kGroupSize; ++i)
        *out++ = d * static_cast<float>(static_cast<int>(tile[64 * (i / 4) + 4 * r + i % 4]) - 128);
    }
  }
}

}  // namespace streamfuse
