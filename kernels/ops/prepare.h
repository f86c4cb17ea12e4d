// Prepares the rows of a packed product once for all its outputs: norm, quantization, inner values of the adapters.
#pragma once

#include "packed.h"
#include "scratch.h"
#include "team.h"

namespace streamfuse {

struct ProductInput {
  const float* x;     // [rows, inputs]
  const float* norm;  // [inputs], or null: x is used directly
  float eps;
  int64_t rows;
  int64_t inputs;  // a multiple of 32
  LowRank adapter;

  int64_t adapted_rows() const { return adapter.rank == 0 || adapter.first_row >= rows ? 0 : rows - adapter.first_row; }
};

Rounded take_rounded(Scratch& scratch, int64_t rows, int64_t inputs);
size_t rounded_bytes(int64_t rows, int64_t inputs);

// inner [rows, parts, rank] = down x, for `rows` adapted rows x [rows, inputs].
void adapter_inner(const LowRank& adapter, const float* x, int64_t rows, int64_t inputs, float* inner);

void prepare(const ProductInput& input, const Prepared& ready);

// Whether each thread of a product prepares all rows for itself. That takes no longer than one thread preparing them
// while the others wait, and no row has to move from one core's cache to another's. If there are many rows, they are
// distributed over the threads instead.
bool prepares_for_itself(const ProductInput& input);

// Buffers for the rows of a product, one set per thread if each prepares its own.
struct PreparedBuffers {
  Prepared first;
  size_t stride;  // bytes from one thread's buffers to the next

  Prepared of(int thread) const;
};
PreparedBuffers take_prepared(const ProductInput& input, Scratch& scratch);
size_t prepared_bytes(const ProductInput& input);

// Prepares the rows and distributes the `units` of their product: body(begin, end, thread, ready). `prefetch(unit)`
// prefetches a unit's weights.
template <typename Prefetch, typename Body>
void share_out_prepared(const ProductInput& input, Scratch& scratch, int64_t units, const Prefetch& prefetch,
                        const Body& body) {
  const PreparedBuffers buffers = take_prepared(input, scratch);
  const bool for_itself = prepares_for_itself(input);
  if (!for_itself) prepare(input, buffers.of(0));
  share_out(
      units, even_chunk(units),
      [=](int64_t begin, int thread) {
        prefetch(begin);
        if (for_itself) prepare(input, buffers.of(thread));
      },
      [=](int64_t begin, int64_t end, int thread) { body(begin, end, thread, buffers.of(for_itself ? thread : 0)); });
}

// A tile's outputs for all rows, including the adapter of projection `part`: acc [rows, 16].
void product_tile(const Packed& weight, const ProductInput& input, const Prepared& ready, int64_t tile, int64_t part,
                  float* acc);

}  // namespace streamfuse
