#include "rounding.h"

#include "prepare.h"

#include <algorithm>

#include "lane_kernels.h"

namespace streamfuse {
namespace {
// Below these limits, distributing the work does not pay: cores that write to the same cache line delay each other.
constexpr int64_t kSerialRows = 32;
constexpr int64_t kSerialAdapters = 24000;  // values read for the adapters

int64_t inner_work(const LowRank& adapter, int64_t rows, int64_t inputs) { return inputs * rows * adapter.inner(); }
bool rounds_alone(const ProductInput& input) { return input.rows < kSerialRows; }

size_t bytes_of_one(const ProductInput& input) {
  return rounded_bytes(input.rows, input.inputs) +
         (input.norm == nullptr ? 0 : Scratch::size_of<float>(input.rows * input.inputs)) +
         Scratch::size_of<float>(input.adapted_rows() * input.adapter.inner());
}
}  // namespace

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

void adapter_inner(const LowRank& adapter, const float* x, int64_t rows, int64_t inputs, float* inner) {
  constexpr int64_t kTogether = 4;  // inner values computed per read of a row
  const int64_t count = adapter.inner(), units = (count + kTogether - 1) / kTogether;
  const auto columns = [=](int64_t begin, int64_t end, int) {
    const int64_t first = begin * kTogether, last = std::min(end * kTogether, count);
    for (int64_t row = 0; row < rows; ++row)
      lane_kernels().products->dots(x + row * inputs, adapter.down_row(first, inputs), adapter.is_int8, last - first,
                                    inputs, inner + row * count + first);
  };
  if (inner_work(adapter, rows, inputs) < kSerialAdapters)
    columns(0, units, 0);
  else
    share_out(units, even_chunk(units), columns);
}

Prepared PreparedBuffers::of(int thread) const {
  const size_t offset = static_cast<size_t>(thread) * stride;
  const auto moved = [offset](auto* first) {
    return first == nullptr ? nullptr : reinterpret_cast<decltype(first)>(reinterpret_cast<char*>(first) + offset);
  };
  const Rounded& r = first.rounded;
  return {{moved(r.q), moved(r.scale), moved(r.share), moved(r.start), r.rows, r.groups},
          moved(first.normed),
          moved(first.inner)};
}

PreparedBuffers take_prepared(const ProductInput& input, Scratch& scratch) {
  PreparedBuffers buffers;
  buffers.stride = bytes_of_one(input);
  buffers.first.rounded = take_rounded(scratch, input.rows, input.inputs);
  buffers.first.normed = input.norm == nullptr ? nullptr : scratch.take<float>(input.rows * input.inputs);
  const int64_t adapted = input.adapted_rows();
  buffers.first.inner = adapted == 0 ? nullptr : scratch.take<float>(adapted * input.adapter.inner());
  scratch.take<uint8_t>(static_cast<int64_t>(prepared_bytes(input) - buffers.stride));  // buffers of the other threads
  return buffers;
}

size_t prepared_bytes(const ProductInput& input) {
  return bytes_of_one(input) * (prepares_for_itself(input) ? static_cast<size_t>(team_limit()) : 1);
}

bool prepares_for_itself(const ProductInput& input) {
  return rounds_alone(input) && inner_work(input.adapter, input.adapted_rows(), input.inputs) < kSerialAdapters;
}

void prepare(const ProductInput& input, const Prepared& ready) {
  const ProductKernels& kernels = *lane_kernels().products;
  const auto rows = [=, &kernels](int64_t begin, int64_t end, int) {
    constexpr int64_t kTogether = 4;  // rows that stay in the L1 cache from norm to quantization
    for (int64_t row = begin; row < end; row += kTogether) {
      const int64_t count = std::min(kTogether, end - row);
      const float* x = input.x + row * input.inputs;
      if (ready.normed != nullptr) {
        float* const normed = ready.normed + row * input.inputs;
        kernels.norm(x, count, input.norm, input.eps, input.inputs, normed);
        x = normed;
      }
      for (int64_t i = 0; i < count; ++i) kernels.round(x + i * input.inputs, ready.rounded, row + i);
    }
  };
  if (rounds_alone(input))
    rows(0, input.rows, 0);
  else
    share_out(input.rows, even_chunk(input.rows), rows);
  if (const int64_t adapted = input.adapted_rows(); adapted > 0) {
    const float* const x = ready.normed == nullptr ? input.x : ready.normed;
    adapter_inner(input.adapter, x + (input.rows - adapted) * input.inputs, adapted, input.inputs, ready.inner);
  }
}

void product_tile(const Packed& weight, const ProductInput& input, const Prepared& ready, int64_t tile, int64_t part,
                  float* acc) {
  const ProductKernels& kernels = *lane_kernels().products;
  kernels.product(weight, tile, ready.rounded, 0, input.rows, acc, false);
  if (ready.inner == nullptr) return;
  const LowRank& adapter = input.adapter;
  const int64_t adapted = input.adapted_rows();
  kernels.adapt(acc + (input.rows - adapted) * kTileRows, adapted, ready.inner + part * adapter.rank, adapter.inner(),
                adapter.up_tile(tile), adapter.is_int8, adapter.rank);
}

}  // namespace streamfuse
