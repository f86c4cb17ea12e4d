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
         Scratch::size_of<float>(input.adapted_rows() * input.adapter.inner());
}

void adapter_inner(const LowRank& adapter, const float* x, int64_t rows, int64_t inputs, float* inner) {
  constexpr int64_t kTogether = 4;  // values of a row that share one reading of it
  const int64_t count = adapter.inner(), units = (count + kTogether - 1) / kTogether;
  const auto columns = [&](int64_t begin, int64_t end, int) {
    const int64_t first = begin * kTogether, last = std::min(end * kTogether, count);
    for (int64_t row = 0; row < rows; ++row)
      lane_kernels().products->dots(x + row * inputs, adapter.down + first * inputs, last - first, inputs,
                                    inner + row * count + first);
  };
  if (inputs * rows * count < kSerialWork)
    columns(0, units, 0);
  else
    share_out(units, even_chunk(units), columns);
}

Prepared prepare(const ProductInput& input, Scratch& scratch) {
  const ProductKernels& kernels = *lane_kernels().products;
  const Rounded rounded = take_rounded(scratch, input.rows, input.inputs);
  float* const normed = input.norm == nullptr ? nullptr : scratch.take<float>(input.rows * input.inputs);
  const int64_t adapted = input.adapted_rows();
  float* const inner = adapted == 0 ? nullptr : scratch.take<float>(adapted * input.adapter.inner());

  const auto rows = [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) {
      const float* x = input.x + row * input.inputs;
      if (normed != nullptr) {
        kernels.norm(x, input.norm, input.eps, input.inputs, normed + row * input.inputs);
        x = normed + row * input.inputs;
      }
      kernels.round(x, rounded, row);
    }
  };
  if (3 * input.inputs * input.rows < kSerialWork)
    rows(0, input.rows, 0);
  else
    share_out(input.rows, even_chunk(input.rows), rows);
  if (adapted > 0) {
    const float* const x = normed == nullptr ? input.x : normed;
    adapter_inner(input.adapter, x + (input.rows - adapted) * input.inputs, adapted, input.inputs, inner);
  }
  return {rounded, inner};
}

void product_tile(const Packed& weight, const ProductInput& input, const Prepared& ready, int64_t tile, int64_t part,
                  float* acc) {
  const ProductKernels& kernels = *lane_kernels().products;
  kernels.product(weight, tile, ready.rounded, 0, input.rows, acc);
  if (ready.inner == nullptr) return;
  const LowRank& adapter = input.adapter;
  const int64_t adapted = input.adapted_rows();
  kernels.adapt(acc + (input.rows - adapted) * kTileRows, adapted, ready.inner + part * adapter.rank, adapter.inner(),
                adapter.up + tile * adapter.rank * kTileRows, adapter.rank);
}

}  // namespace streamfuse
