// The single-thread kernels of the packed products and of what is fused with them, one table per instruction set.
#pragma once

#include "packed.h"

namespace streamfuse {

// The largest value so far and the smallest id that has it.
struct Best {
  float value;
  int64_t id;
};

// SiLU, or GELU in its approximation with tanh.
enum class Activation { kSilu, kGelu };

// S' = decay S + k (beta (v - decay S^T k))^T, out = S'^T q, with S [key_dim, columns] in `from` and S' in `to`, which
// may be the same. A column of S depends on no other. Sums over key_dim are those of the even rows in
// order, plus those of the odd ones.
struct DeltaStep {
  const float* from;
  float* to;
  int64_t from_stride, to_stride;  // from one row of S to the next
  const float *q, *k, *v;
  float decay, beta;
  int64_t key_dim;
  float* out;
};

struct ProductKernels {
  // Outputs 16 tile .. 16 tile + 15 of rows row0 .. row0 + rows - 1 over the first x.groups groups: out [rows, 16].
  // If `onto` is set, adds to the values in `out`.
  void (*product)(const Packed& weight, int64_t tile, const Rounded& x, int64_t row0, int64_t rows, float* out,
                  bool onto);
  // out = (x / sqrt(mean(x^2) + eps)) * weight over each of `rows` rows of `size` values; may work in place.
  void (*norm)(const float* x, int64_t rows, const float* weight, float eps, int64_t size, float* out);
  // Quantizes one row of 32 * to.groups values.
  void (*round)(const float* x, const Rounded& to, int64_t row);
  // out[j] = dot(matrix[j], x), matrix float16 [count, size], or int8 with a float32 factor of out[j] after each row.
  void (*dots)(const float* x, const uint8_t* matrix, bool is_int8, int64_t count, int64_t size, float* out);
  // acc[i] = fma(up[j], inner[i, j], acc[i]) for j in order; acc [rows, 16], rows of inner `stride` apart, up float16
  // or int8 [rank, 16].
  void (*adapt)(float* acc, int64_t rows, const float* inner, int64_t stride, const uint8_t* up, bool is_int8,
                int64_t rank);
  // Half-split rotary embedding of one head in place; dim is even.
  void (*rotate)(float* head, const float* cos, const float* sin, int64_t dim);
  // activation(gate) * up of one group of 32, quantized, from tiles gate, up, gate, up [4, rows, 16]. If `gated` is not
  // null, it receives the floats of the rows from `first` on, [rows - first, stride].
  void (*gate)(Activation activation, const float* tiles, int64_t rows, const Rounded& to, int64_t group, float* gated,
               int64_t first, int64_t stride);
  // out = x / (1 + exp(-gate)) of `size` values.
  void (*scale_by_sigmoid)(const float* x, float gate, int64_t size, float* out);
  // out = x / (1 + exp(-gates)) of `size` values; may work in place.
  void (*scale_by_sigmoids)(const float* x, const float* gates, int64_t size, float* out);
  // out = x GELU(gates) of `size` values, GELU in its approximation with tanh; may work in place.
  void (*scale_by_gelus)(const float* x, const float* gates, int64_t size, float* out);
  // out = SiLU(taps[0] * rows[0] + ... + taps[count - 1] * rows[count - 1]) of each channel, added from left to right.
  void (*convolve)(const float* const* rows, const float* taps, int64_t count, int64_t channels, float* out);
  // One row of the gated delta rule, for the first `columns` columns of S.
  void (*delta_step)(const DeltaStep& args, int64_t columns);
  // Updates `best` with `count` <= 16 values whose ids start at first_id; on ties the smallest id wins, whatever the
  // order of the calls. A NaN is never best.
  void (*keep_best)(const float* values, int64_t count, int64_t first_id, Best* best);
  // Converts one float16, exactly.
  float (*half)(const uint8_t* p);
  // Reads every byte once, to measure memory bandwidth.
  uint64_t (*read)(const void* data, size_t bytes);
};

}  // namespace streamfuse
