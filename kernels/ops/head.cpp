#include "head.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "lane_kernels.h"
#include "linear.h"
#include "team.h"

namespace streamfuse {
namespace {
constexpr Best kNone = {-std::numeric_limits<float>::infinity(), std::numeric_limits<int64_t>::max()};
}

void head(const Head& args) {
  const int64_t rows = args.input.rows, vocabulary = args.vocab_size, stride = rows * kTileRows;
  const int threads = team_limit();
  Scratch scratch(prepared_bytes(args.input) + Scratch::size_of<float>(threads * stride) +
                  Scratch::size_of<Best>(threads * rows));
  const Prepared ready = prepare(args.input, scratch);
  float* const accs = scratch.take<float>(threads * stride);
  Best* const bests = scratch.take<Best>(threads * rows);
  std::fill_n(bests, threads * rows, kNone);
  const ProductKernels& kernels = *lane_kernels().products;

  share_out(args.weight.tiles, even_chunk(args.weight.tiles), [&](int64_t begin, int64_t end, int thread) {
    float* const acc = accs + thread * stride;
    Best* const best = bests + thread * rows;
    for (int64_t tile = begin; tile < end; ++tile) {
      product_tile(args.weight, args.input, ready, tile, 0, acc);
      const int64_t column = tile * kTileRows, count = std::min(kTileRows, vocabulary - column);
      for (int64_t row = 0; row < rows; ++row) {
        const float* values = acc + row * kTileRows;
        kernels.keep_best(values, count, column, &best[row]);
        if (args.logits != nullptr)
          std::memcpy(args.logits + row * vocabulary + column, values, static_cast<size_t>(count) * sizeof(float));
      }
    }
  });
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
  const size_t logits_bytes = Scratch::size_of<float>(rows * columns);
  Scratch scratch(prepared_bytes(args.input) + linear_scratch(rows) + logits_bytes);
  float* const logits = scratch.take<float>(rows * columns);
  linear_prepared({args.input, args.weight, columns, nullptr, logits}, prepare(args.input, scratch), scratch);
  const TopKLogProb best = {logits, args.ids, args.out_ids, args.out_log_probs, rows, columns, args.k};
  share_out(rows, even_chunk(rows), [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) lane_kernels().top_k_row(best, row);
  });
}

}  // namespace streamfuse
