#include "rounding.h"

#include "qkv.h"

#include <cstring>

#include "lane_kernels.h"

namespace streamfuse {

void qkv(const Qkv& args) {
  const int64_t rows = args.input.rows, dim = args.head_dim, tiles = dim / kTileRows, stride = tiles * rows * kTileRows;
  const int64_t all = args.heads + 2 * args.kv_heads;
  Scratch scratch(prepared_bytes(args.input) + Scratch::size_of<float>(team_limit() * stride));
  float* const accs = scratch.take<float>(team_limit() * stride);
  const auto prefetch = [=, weight = args.weight](int64_t head) { weight.prefetch(head * tiles); };
  const auto heads = [=](int64_t begin, int64_t end, int thread, const Prepared& ready) {
    const ProductKernels& kernels = *lane_kernels().products;
    float* const acc = accs + thread * stride;
    for (int64_t head = begin; head < end; ++head) {
      const bool is_query = head < args.heads, is_key = !is_query && head < args.heads + args.kv_heads;
      const int64_t among = is_query ? args.heads : args.kv_heads;
      const int64_t index = is_query ? head : is_key ? head - args.heads : head - args.heads - args.kv_heads;
      for (int64_t t = 0; t < tiles; ++t)
        product_tile(args.weight, args.input, ready, head * tiles + t,
                     is_query ? 0
                     : is_key ? 1
                              : 2,
                     acc + t * rows * kTileRows);
      float* const out = is_query ? args.query : is_key ? args.key : args.value;
      const float* const bias = args.bias == nullptr ? nullptr : args.bias + head * dim;
      const float* const norm = args.norms_rows ? nullptr : is_query ? args.q_norm : is_key ? args.k_norm : nullptr;
      for (int64_t row = 0; row < rows; ++row) {
        float* const to = out + (row * among + index) * dim;
        for (int64_t t = 0; t < tiles; ++t)
          std::memcpy(to + t * kTileRows, acc + (t * rows + row) * kTileRows, kTileRows * sizeof(float));
        for (int64_t i = 0; bias != nullptr && i < dim; ++i) to[i] += bias[i];
        if (norm != nullptr) kernels.norm(to, 1, norm, args.input.eps, dim, to);
        if ((is_query || is_key) && !args.norms_rows)
          kernels.rotate(to, args.cos + row * dim, args.sin + row * dim, dim);
      }
    }
  };
  share_out_prepared(args.input, scratch, all, prefetch, heads);
  if (!args.norms_rows) return;
  share_out(rows, even_chunk(rows), [=](int64_t begin, int64_t end, int) {
    const ProductKernels& kernels = *lane_kernels().products;
    const auto finish = [&](float* row, int64_t count, const float* norm, int64_t at) {
      kernels.norm(row, 1, norm, args.input.eps, count * dim, row);
      for (int64_t head = 0; head < count; ++head)
        kernels.rotate(row + head * dim, args.cos + at * dim, args.sin + at * dim, dim);
    };
    for (int64_t row = begin; row < end; ++row) {
      finish(args.query + row * args.heads * dim, args.heads, args.q_norm, row);
      finish(args.key + row * args.kv_heads * dim, args.kv_heads, args.k_norm, row);
    }
  });
}

}  // namespace streamfuse
