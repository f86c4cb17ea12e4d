// The rows that a packed product takes, made ready once for all its outputs: normed, rounded, adapters' inner values.
#pragma once

#include "packed.h"
#include "scratch.h"
#include "team.h"

namespace streamfuse {

struct ProductInput {
  const float* x;     // [rows, inputs]
  const float* norm;  // [inputs], or null: x as it is
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

// Whether each thread of a product prepares all rows for itself. That takes as long as one thread would need while the
// others wait, and then no rounded row has to go from one core's cache to another's. Many rows are shared out instead.
bool prepares_for_itself(const ProductInput& input);

// Room for the rows of a product, per thread where each prepares its own.
struct PreparedRoom {
  Prepared first;
  size_t stride;  // bytes between those of two threads

  Prepared of(int thread) const;
};
PreparedRoom take_prepared(const ProductInput& input, Scratch& scratch);
size_t prepared_bytes(const ProductInput& input);

// Prepares the rows and shares out the `units` of their product: body(begin, end, thread, ready). `ask(unit)` asks the
// memory for a unit's weights.
template <typename Ask, typename Body>
void share_out_prepared(const ProductInput& input, Scratch& scratch, int64_t units, const Ask& ask, const Body& body) {
  const PreparedRoom room = take_prepared(input, scratch);
  const bool for_itself = prepares_for_itself(input);
  if (!for_itself) prepare(input, room.of(0));
  share_out(
      units, even_chunk(units),
      [=](int64_t begin, int thread) {
        ask(begin);
        if (for_itself) prepare(input, room.of(thread));
      },
      [=](int64_t begin, int64_t end, int thread) { body(begin, end, thread, room.of(for_itself ? thread : 0)); });
}

// A tile's outputs of all rows, the adapter of projection `part` included: acc [rows, 16].
void product_tile(const Packed& weight, const ProductInput& input, const Prepared& ready, int64_t tile, int64_t part,
                  float* acc);

}  // namespace streamfuse
