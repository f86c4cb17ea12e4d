#include "rounding.h"

#include "head.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "lane_kernels.h"
#include "linear.h"

namespace streamfuse {
namespace {
constexpr Best kNone = {-std::numeric_limits<float>::infinity(), std::numeric_limits<int64_t>::max()};

// cap tanh(x / cap) = 2 cap / (1 + exp(-2 x / cap)) - cap of `count` values, in place.
void cap_logits(float cap, int64_t count, float* x) {
  float gates[kTileRows], doubled[kTileRows];
  for (int64_t i = 0; i < count; ++i) {
    gates[i] = x[i] * (2.0f / cap);
    doubled[i] = 2.0f * cap;
  }
  lane_kernels().products->scale_by_sigmoids(doubled, gates, count, x);
  for (int64_t i = 0; i < count; ++i) x[i] -= cap;
}
}  // namespace

void head(const Head& args) {
  const int64_t rows = args.input.rows, vocabulary = args.vocab_size, stride = rows * kTileRows;
  const int threads = team_limit();
  Scratch scratch(prepared_bytes(args.input) + Scratch::size_of<float>(threads * stride) +
                  Scratch::size_of<Best>(threads * rows));
  float* const accs = scratch.take<float>(threads * stride);
  Best* const bests = scratch.take<Best>(threads * rows);
  std::fill_n(bests, threads * rows, kNone);
  const auto prefetch = [weight = args.weight](int64_t tile) { weight.prefetch(tile); };

  const auto tiles = [=](int64_t begin, int64_t end, int thread, const Prepared& ready) {
    const ProductKernels& kernels = *lane_kernels().products;
    float* const acc = accs + thread * stride;
    Best* const best = bests + thread * rows;
    for (int64_t tile = begin; tile < end; ++tile) {
      product_tile(args.weight, args.input, ready, tile, 0, acc);
      const int64_t column = tile * kTileRows, count = std::min(kTileRows, vocabulary - column);
      for (int64_t row = 0; row < rows; ++row) {
        const float* values = acc + row * kTileRows;
        kernels.keep_best(values, count, column, &best[row]);
        if (args.logits == nullptr) continue;
        float* const logits = args.logits + row * vocabulary + column;
        std::memcpy(logits, values, static_cast<size_t>(count) * sizeof(float));
        if (args.cap > 0.0f) cap_logits(args.cap, count, logits);
      }
    }
  };
  share_out_prepared(args.input, scratch, args.weight.tiles, prefetch, tiles);
  for (int64_t row = 0; row < rows; ++row) {
    Best winner = kNone;
    for (int thread = 0; thread < threads; ++thread) {
      const Best& other = bests[thread * rows + row];
      if (other.value > winner.value || (other.value == winner.value && other.id < winner.id)) winner = other;
    }
    args.best[row] = winner.id < vocabulary ? winner.id : 0;
  }
}

void stream_top_k(const StreamTopK& args) {
  const int64_t rows = args.input.rows, columns = args.columns;
  Linear linear_args = {args.input, args.weight, columns, nullptr, nullptr, nullptr};
  Scratch scratch(linear_bytes(linear_args) + Scratch::size_of<float>(rows * columns));
  float* const logits = linear_args.out = scratch.take<float>(rows * columns);
  linear(linear_args, scratch);
  const TopK best = {logits, args.ids, args.out_ids, args.out_log_probs, rows, columns, args.k};
  share_out(rows, even_chunk(rows), [=](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) lane_kernels().top_k_row(best, row);
  });
}

}  // namespace streamfuse
