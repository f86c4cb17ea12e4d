#include "prepare.h"

#include <algorithm>

#include "lane_kernels.h"
#include "team.h"

namespace streamfuse {
namespace {
constexpr int64_t kSerialWork = 24000;  // values read below which sharing the rows out does not pay
}

Rounded take_rounded(Scratch& scratch, int64_t rows, int64_t inputs) {
  const int64_t groups = inputs / kGroupSize;
  Rounded r;
  r.q = scratch.take<int8_t>(rows * inputs);
  r.scale = scratch.take<float>(rows * groups);
  r.share = scratch.take<float>(rows * groups);
  r.start = scratch.take<int32_t>(rows * groups);
  r.rows = rows;
  r.groups = groups;
  return r;
}

size_t rounded_bytes(int64_t rows, int64_t inputs) {
  return Scratch::size_of<int8_t>(rows * inputs) + 3 * Scratch::size_of<float>(rows * inputs / kGroupSize);
}

size_t prepared_bytes(const ProductInput& input) {
  return rounded_bytes(input.rows, input.inputs) +
         (input.norm == nullptr ? 0 : Scratch::size_of<float>(input.rows * input.inputs)) +
         Scratch::size_of<float>(input.adapted_rows() * input.adapter.rank);
}

Prepared prepare(const ProductInput& input, Scratch& scratch) {
  const ProductKernels& kernels = *lane_kernels().products;
  const Rounded rounded = take_rounded(scratch, input.rows, input.inputs);
  float* const normed = input.norm == nullptr ? nullptr : scratch.take<float>(input.rows * input.inputs);
  const LowRank& adapter = input.adapter;
  const int64_t adapted = input.adapted_rows(), first = input.rows - adapted;
  float* const inner = adapted == 0 ? nullptr : scratch.take<float>(adapted * adapter.rank);

  const auto rows = [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) {
      const float* x = input.x + row * input.inputs;
      if (normed != nullptr) {
        kernels.norm(x, input.norm, input.eps, input.inputs, normed + row * input.inputs);
        x = normed + row * input.inputs;
      }
      kernels.round(x, rounded, row);
      if (row >= first) kernels.dots(x, adapter.down, adapter.rank, input.inputs, inner + (row - first) * adapter.rank);
    }
  };
  if (input.inputs * (3 * input.rows + adapted * adapter.rank) < kSerialWork)
    rows(0, input.rows, 0);
  else
    share_out(input.rows, even_chunk(input.rows), rows);
  return {rounded, inner};
}

void product_tile(const Packed& weight, const ProductInput& input, const Prepared& ready, int64_t tile, int64_t outputs,
                  float* acc) {
  const ProductKernels& kernels = *lane_kernels().products;
  kernels.product(weight, tile, ready.rounded, 0, input.rows, acc);
  if (ready.inner == nullptr) return;
  const int64_t adapted = input.adapted_rows(), column = tile * kTileRows;
  kernels.adapt(acc + (input.rows - adapted) * kTileRows, adapted, ready.inner, input.adapter.rank,
                input.adapter.up + column, outputs, std::min(kTileRows, outputs - column));
}

}  // namespace streamfuse
