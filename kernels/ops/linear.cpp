#include "rounding.h"

#include "linear.h"

#include <algorithm>

#include "team.h"

namespace streamfuse {

size_t linear_scratch(int64_t rows) { return team_limit() * Scratch::size_of<float>(rows * kTileRows); }
size_t linear_bytes(const Linear& args) { return prepared_bytes(args.input) + linear_scratch(args.input.rows); }

namespace {

// The work of the product's threads, with all of its inputs.
struct LinearTiles {
  Linear args;
  float* accs;

  void operator()(int64_t begin, int64_t end, int thread, const Prepared& ready) const {
    const int64_t rows = args.input.rows, outputs = args.outputs;
    float* const acc = accs + thread * rows * kTileRows;
    for (int64_t tile = begin; tile < end; ++tile) {
      product_tile(args.weight, args.input, ready, tile, 0, acc);
      const int64_t column = tile * kTileRows, count = std::min(kTileRows, outputs - column);
      for (int64_t row = 0; row < rows; ++row) {
        const float* from = acc + row * kTileRows;
        float* to = args.out + row * outputs + column;
        const float* residual = args.residual == nullptr ? nullptr : args.residual + row * outputs + column;
        const float* bias = args.bias == nullptr ? nullptr : args.bias + column;
        for (int64_t i = 0; i < count; ++i) {
          const float biased = bias == nullptr ? from[i] : from[i] + bias[i];
          to[i] = residual == nullptr ? biased : biased + residual[i];
        }
      }
    }
  }
};

}  // namespace

void linear_prepared(const Linear& args, const Prepared& ready, Scratch& scratch) {
  float* const accs = scratch.take<float>(team_limit() * args.input.rows * kTileRows);
  const LinearTiles tiles = {args, accs};
  share_out(
      args.weight.tiles, even_chunk(args.weight.tiles),
      [weight = args.weight](int64_t begin, int) { weight.prefetch(begin); },
      [=](int64_t begin, int64_t end, int thread) { tiles(begin, end, thread, ready); });
}

void linear(const Linear& args, Scratch& scratch) {
  float* const accs = scratch.take<float>(team_limit() * args.input.rows * kTileRows);
  share_out_prepared(
      args.input, scratch, args.weight.tiles, [weight = args.weight](int64_t tile) { weight.prefetch(tile); },
      LinearTiles{args, accs});
}

void linear(const Linear& args) {
  Scratch scratch(linear_bytes(args));
  linear(args, scratch);
}

}  // namespace streamfuse
