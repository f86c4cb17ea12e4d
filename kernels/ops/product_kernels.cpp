// The packed products: exact integer dot products per group of 32, then two fused steps in float32 per group, in order.
// Compiled once per instruction set; see lanes.h for what may be used here.
#include "rounding.h"

#if defined(__AVX2__) && !defined(__AVX512F__)
#include "product_avx2.h"
#else
#include "product_block.h"
#endif
#include "row_kernels.h"

namespace streamfuse {
namespace STREAMFUSE_ISA {
namespace {

template <bool Q8, bool IsWeight>
void product_rows(const uint8_t* tile, const Rounded& x, int64_t row0, int64_t rows, float* out, bool onto) {
  constexpr int64_t kRows = Q8 ? kRowBlock : kNibbleRowBlock;
  // Blocks of about the same size: 16 rows as 8 + 8, not 12 + 4.
  for (int64_t left = rows, blocks = (rows + kRows - 1) / kRows; blocks > 0; --blocks) {
    int64_t n = (left + blocks - 1) / blocks;
    if (kPairs && n % 2 != 0 && n < left) ++n;  // only the very last row may be unpaired
    switch (n) {
#define SF_ROWS(N)                                                             \
  case N:                                                                      \
    product_block<Q8, IsWeight, N <= kRows ? N : 1>(tile, x, row0, out, onto); \
    break;
      SF_ROWS(1)
      SF_ROWS(2)
      SF_ROWS(3) SF_ROWS(4) SF_ROWS(5) SF_ROWS(6) SF_ROWS(7) SF_ROWS(8) SF_ROWS(9) SF_ROWS(10) SF_ROWS(11) SF_ROWS(12)
#undef SF_ROWS
    }
    row0 += n;
    left -= n;
    out += n * kLanes;
  }
}

void product(const Packed& weight, int64_t tile, const Rounded& x, int64_t row0, int64_t rows, float* out, bool onto) {
  const uint8_t* data = weight.data + tile * weight.groups * weight.group_bytes();
  if (!weight.is_q8)
    product_rows<false, true>(data, x, row0, rows, out, onto);
  else if (weight.is_weight)
    product_rows<true, true>(data, x, row0, rows, out, onto);
  else
    product_rows<true, false>(data, x, row0, rows, out, onto);
}

}  // namespace

extern const ProductKernels kProducts;
const ProductKernels kProducts = {
    product,           norm,           round,    dots,       adapt,     rotate,  gate, scale_by_sigmoid,
    scale_by_sigmoids, scale_by_gelus, convolve, delta_step, keep_best, half_at, read};

}  // namespace STREAMFUSE_ISA
}  // namespace streamfuse
