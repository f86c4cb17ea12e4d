#include "linear.h"

#include <algorithm>

#include "team.h"

namespace streamfuse {

size_t linear_scratch(int64_t rows) { return team_limit() * Scratch::size_of<float>(rows * kTileRows); }

void linear_prepared(const Linear& args, const Prepared& ready, Scratch& scratch) {
  const int64_t rows = args.input.rows, outputs = args.outputs, stride = rows * kTileRows;
  float* const accs = scratch.take<float>(team_limit() * stride);
  share_out(args.weight.tiles, even_chunk(args.weight.tiles), [&](int64_t begin, int64_t end, int thread) {
    float* const acc = accs + thread * stride;
    for (int64_t tile = begin; tile < end; ++tile) {
      product_tile(args.weight, args.input, ready, tile, 0, acc);
      const int64_t column = tile * kTileRows, count = std::min(kTileRows, outputs - column);
      for (int64_t row = 0; row < rows; ++row) {
        const float* from = acc + row * kTileRows;
        float* to = args.out + row * outputs + column;
        const float* residual = args.residual == nullptr ? nullptr : args.residual + row * outputs + column;
        for (int64_t i = 0; i < count; ++i) to[i] = residual == nullptr ? from[i] : from[i] + residual[i];
      }
    }
  });
}

void linear(const Linear& args) {
  Scratch scratch(prepared_bytes(args.input) + linear_scratch(args.input.rows));
  linear_prepared(args, prepare(args.input, scratch), scratch);
}

}  // namespace streamfuse
