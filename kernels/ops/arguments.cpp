#include "rounding.h"

#include "arguments.h"

#include <executorch/runtime/core/exec_aten/util/scalar_type_util.h>

namespace streamfuse {
namespace {

std::string text_of(std::initializer_list<int64_t> shape) {
  std::string text = "[";
  for (const int64_t n : shape) text += (text.size() > 1 ? ", " : "") + std::to_string(n);
  return text + "]";
}

}  // namespace

void Arguments::check(size_t i, const char* name, ScalarType dtype, std::initializer_list<int64_t> shape) const {
  const auto fits = [&] {
    if (!stack_[i]->isTensor()) return false;
    const auto& t = stack_[i]->toTensor();
    if (t.scalar_type() != dtype || static_cast<size_t>(t.dim()) != shape.size()) return false;
    const auto order = t.dim_order();
    for (size_t d = 0; d < order.size(); ++d)
      if (order[d] != d || t.size(d) != shape.begin()[d]) return false;
    const void* data = t.const_data_ptr();
    return t.numel() == 0 || (data != nullptr && reinterpret_cast<uintptr_t>(data) % t.element_size() == 0);
  };
  if (!fits())
    throw BadArgument{std::string(name) + " must be dense " + executorch::runtime::toString(dtype) + " " +
                      text_of(shape)};
}

Packed Arguments::weight(size_t i, const char* name, int64_t outputs, int64_t inputs) const {
  const int64_t tiles = (outputs + kTileRows - 1) / kTileRows, groups = inputs / kGroupSize;
  if (inputs < kGroupSize || inputs % kGroupSize != 0) throw BadArgument{"inputs must be a multiple of 32"};
  const bool is_q8 = size(i, name, 3, 2) == kQ8TileBytes;
  return {read<uint8_t>(i, name, {tiles, groups, is_q8 ? kQ8TileBytes : kQ4TileBytes}), tiles, groups, is_q8};
}

LowRank Arguments::adapter(size_t i, size_t first, int64_t parts, int64_t outputs, int64_t inputs) const {
  const int64_t first_row = integer(first, "first_adapted_row", 0), tiles = (outputs + kTileRows - 1) / kTileRows;
  if (absent(i) != absent(i + 1)) throw BadArgument{"an adapter needs both of its matrices"};
  if (absent(i)) return {nullptr, nullptr, 0, 0, first_row, false};
  const int64_t rank = size(i + 1, "up", 3, 1);
  const bool is_int8 = stack_[i + 1]->toTensor().scalar_type() == ScalarType::Char;
  if (is_int8)
    return {bytes<int8_t>(i, "down", {parts * rank, inputs + static_cast<int64_t>(sizeof(float))}),
            bytes<int8_t>(i + 1, "up", {tiles, rank, kTileRows}),
            parts,
            rank,
            first_row,
            true};
  return {bytes<uint16_t>(i, "down", {parts * rank, inputs}),
          bytes<uint16_t>(i + 1, "up", {tiles, rank, kTileRows}),
          parts,
          rank,
          first_row,
          false};
}

ProductInput Arguments::normed_input() const {
  const int64_t rows = size(0, "x", 2, 0), inputs = size(0, "x", 2, 1);
  return {read<float>(0, "x", {rows, inputs}), optional(1, "norm", {inputs}), number(2, "eps"), rows, inputs, {}};
}

}  // namespace streamfuse
