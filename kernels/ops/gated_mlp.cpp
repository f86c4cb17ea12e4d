#include "rounding.h"

#include "gated_mlp.h"

#include "lane_kernels.h"
#include "linear.h"

namespace streamfuse {

void gated_mlp(const GatedMlp& args) {
  const int64_t rows = args.input.rows, inner_size = args.intermediate, tile_floats = rows * kTileRows;
  Linear down = {{nullptr, nullptr, 0, rows, inner_size, args.down_adapter},
                 args.down_proj,
                 args.input.inputs,
                 nullptr,
                 args.adds_input ? args.input.x : nullptr,
                 args.out};
  const int64_t adapted = down.input.adapted_rows(), first = rows - adapted;
  Scratch scratch(prepared_bytes(args.input) + Scratch::size_of<float>(team_limit() * 4 * tile_floats) +
                  rounded_bytes(rows, inner_size) + Scratch::size_of<float>(adapted * inner_size) +
                  Scratch::size_of<float>(adapted * args.down_adapter.inner()) + linear_scratch(rows));
  float* const tiles = scratch.take<float>(team_limit() * 4 * tile_floats);
  const Rounded gated = take_rounded(scratch, rows, inner_size);
  float* const gated_floats = adapted == 0 ? nullptr : scratch.take<float>(adapted * inner_size);
  float* const inner = adapted == 0 ? nullptr : scratch.take<float>(adapted * args.down_adapter.inner());
  const auto prefetch = [weight = args.gate_up](int64_t group) { weight.prefetch(4 * group); };
  const auto groups = [=](int64_t begin, int64_t end, int thread, const Prepared& ready) {
    const ProductKernels& kernels = *lane_kernels().products;
    float* const acc = tiles + thread * 4 * tile_floats;
    for (int64_t group = begin; group < end; ++group) {
      for (int64_t t = 0; t < 4; ++t)
        product_tile(args.gate_up, args.input, ready, 4 * group + t, t % 2, acc + t * tile_floats);
      kernels.gate(args.activation, acc, rows, gated, group, gated_floats, first, inner_size);
    }
  };
  share_out_prepared(args.input, scratch, gated.groups, prefetch, groups);
  if (adapted > 0) adapter_inner(args.down_adapter, gated_floats, adapted, inner_size, inner);
  linear_prepared(down, {gated, nullptr, inner}, scratch);
}

}  // namespace streamfuse
