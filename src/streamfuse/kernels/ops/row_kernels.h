// What surrounds a packed product, row by row: norm, rounding, adapters, rotation, gate. Included by
// product_kernels.cpp.
#pragma once

#include "groups.h"
#include "product_kernels.h"

namespace streamfuse {
namespace STREAMFUSE_ISA {
namespace {

constexpr float kSmallestScale = 1.17549435e-38f;  // below it a group counts as zeros, and 1 / scale stays finite

// Two halves of a group of 32.
SF_INLINE void round_group(Lanes low, Lanes high, const Rounded& to, int64_t row, int64_t group) {
  const int64_t at = group * to.rows + row;
  float scale = largest(max(magnitude(low), magnitude(high))) / 127.0f;
  if (!(scale >= kSmallestScale)) scale = scale == scale ? 0.0f : scale;
  const float inverse = scale == 0.0f ? 0.0f : 1.0f / scale;
#if defined(__ARM_FEATURE_MATMUL_INT8)
  int8_t q[kGroupSize];
#else
  int8_t* const q = to.q + at * kGroupSize;
#endif
  const int32_t sum = sum_of_integers(round_lanes(low, inverse, q) + round_lanes(high, inverse, q + kLanes));
#if defined(__ARM_FEATURE_MATMUL_INT8)
  place_group(q, to.q + group * to.rows * kGroupSize, row, to.rows);
#endif
  to.scale[at] = scale;
  to.share[at] = scale * (float)sum;
  to.start[at] = (int32_t)(-128u * (uint32_t)sum);  // what is not a number has any sum
}

#if defined(__AVX512F__)
// Sixteen groups at a time: what is computed once per group stands side by side.
SF_INLINE void round_16_groups(const float* x, const Rounded& to, int64_t row, int64_t group) {
  const auto greater = [](__m512 a, __m512 b) { return _mm512_max_ps(a, b); };
  const auto plus = [](__m512 a, __m512 b) {
    return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(a), _mm512_castps_si512(b)));
  };
  __m512 of_group[16];
  for (int g = 0; g < 16; ++g) {
    const Lanes low = load(x + g * kGroupSize), high = load(x + g * kGroupSize + kLanes);
    of_group[g] = _mm512_max_ps(magnitude(low).part[0], magnitude(high).part[0]);
  }
  const __m512 zero = _mm512_setzero_ps();
  __m512 scale = _mm512_div_ps(in_order(fold_16(of_group, greater)), _mm512_set1_ps(127.0f));
  scale = _mm512_mask_mov_ps(scale, _mm512_cmp_ps_mask(scale, _mm512_set1_ps(kSmallestScale), _CMP_LT_OQ), zero);
  const __mmask16 is_zero = _mm512_cmp_ps_mask(scale, zero, _CMP_EQ_OQ);
  float scales[16], inverses[16], shares[16];
  int32_t starts[16];
  _mm512_storeu_ps(inverses, _mm512_mask_mov_ps(_mm512_div_ps(_mm512_set1_ps(1.0f), scale), is_zero, zero));
  for (int g = 0; g < 16; ++g) {
    int8_t* const q = to.q + ((group + g) * to.rows + row) * kGroupSize;
    const NativeInt low = round_lanes(load(x + g * kGroupSize), inverses[g], q);
    const NativeInt high = round_lanes(load(x + g * kGroupSize + kLanes), inverses[g], q + kLanes);
    of_group[g] = _mm512_castsi512_ps((__m512i)(low + high));
  }
  const __m512i sum = _mm512_castps_si512(in_order(fold_16(of_group, plus)));
  _mm512_storeu_ps(scales, scale);
  _mm512_storeu_ps(shares, _mm512_mul_ps(scale, _mm512_cvtepi32_ps(sum)));
  _mm512_storeu_si512(starts, _mm512_mullo_epi32(sum, _mm512_set1_epi32(-128)));
  for (int g = 0; g < 16; ++g) {
    const int64_t at = (group + g) * to.rows + row;
    to.scale[at] = scales[g], to.share[at] = shares[g], to.start[at] = starts[g];
  }
}
#endif

void round(const float* x, const Rounded& to, int64_t row) {
  int64_t g = 0;
#if defined(__AVX512F__)
  for (; g + 16 <= to.groups; g += 16) round_16_groups(x + g * kGroupSize, to, row, g);
#endif
  for (; g < to.groups; ++g) round_group(load(x + g * kGroupSize), load(x + g * kGroupSize + kLanes), to, row, g);
}

template <typename T>
SF_INLINE Lanes load_at_most(const T* p, int64_t count) {
  return count < kLanes ? load_first(p, (int)count) : load(p);
}

SF_INLINE void store_at_most(float* p, Lanes x, int64_t count) {
  if (count < kLanes)
    store_first(p, x, (int)count);
  else
    store(p, x);
}

template <int Count, typename T>
SF_INLINE void dot_block(const float* x, const T* const* rows, int64_t size, float* out) {
  Lanes acc[Count];
  for (int j = 0; j < Count; ++j) acc[j] = splat(0.0f);
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) {
    const Lanes v = load(x + i);
    for (int j = 0; j < Count; ++j) acc[j] = fma(load(rows[j] + i), v, acc[j]);
  }
  if (i < size) {
    const Lanes v = load_first(x + i, (int)(size - i));
    for (int j = 0; j < Count; ++j) acc[j] = fma(load_first(rows[j] + i, (int)(size - i)), v, acc[j]);
  }
  for (int j = 0; j < Count; ++j) out[j] = sum(acc[j]);
}

void dots(const float* x, const uint16_t* matrix, int64_t count, int64_t size, float* out) {
  int64_t j = 0;
  for (; j + 4 <= count; j += 4) {
    const uint16_t* rows[4] = {matrix + j * size, matrix + (j + 1) * size, matrix + (j + 2) * size,
                               matrix + (j + 3) * size};
    dot_block<4>(x, rows, size, out + j);
  }
  for (; j < count; ++j) {
    const uint16_t* row = matrix + j * size;
    dot_block<1>(x, &row, size, out + j);
  }
}

// The squares of a row add up in order, each sum waiting for the one before; those of other rows do not.
template <int Rows>
SF_INLINE void norm_block(const float* x, const float* weight, float eps, int64_t size, float* out) {
  Lanes acc[Rows];
  for (int r = 0; r < Rows; ++r) acc[r] = splat(0.0f);
  for (int64_t i = 0; i < size; i += kLanes)
    for (int r = 0; r < Rows; ++r) {
      const Lanes v = load_at_most(x + r * size + i, size - i);
      acc[r] = fma(v, v, acc[r]);
    }
  Lanes factor[Rows];
  for (int r = 0; r < Rows; ++r) factor[r] = splat(1.0f / __builtin_sqrtf(sum(acc[r]) / (float)size + eps));
  for (int64_t i = 0; i < size; i += kLanes) {
    const Lanes w = load_at_most(weight + i, size - i);
    for (int r = 0; r < Rows; ++r)
      store_at_most(out + r * size + i, mul(mul(load_at_most(x + r * size + i, size - i), factor[r]), w), size - i);
  }
}

void norm(const float* x, int64_t rows, const float* weight, float eps, int64_t size, float* out) {
  for (; rows >= 4; rows -= 4, x += 4 * size, out += 4 * size) norm_block<4>(x, weight, eps, size, out);
  for (; rows > 0; --rows, x += size, out += size) norm_block<1>(x, weight, eps, size, out);
}

template <int Rows>
SF_INLINE void adapt_block(float* acc, const float* inner, int64_t stride, const uint16_t* up, int64_t rank) {
  Lanes sums[Rows];
  for (int r = 0; r < Rows; ++r) sums[r] = load(acc + r * kLanes);
  for (int64_t j = 0; j < rank; ++j) {
    const Lanes column = load(up + j * kLanes);
    for (int r = 0; r < Rows; ++r) sums[r] = fma(column, splat(inner[r * stride + j]), sums[r]);
  }
  for (int r = 0; r < Rows; ++r) store(acc + r * kLanes, sums[r]);
}

void adapt(float* acc, int64_t rows, const float* inner, int64_t stride, const uint16_t* up, int64_t rank) {
  for (; rows >= 8; rows -= 8, acc += 8 * kLanes, inner += 8 * stride) adapt_block<8>(acc, inner, stride, up, rank);
  for (; rows >= 4; rows -= 4, acc += 4 * kLanes, inner += 4 * stride) adapt_block<4>(acc, inner, stride, up, rank);
  for (; rows > 0; --rows, acc += kLanes, inner += stride) adapt_block<1>(acc, inner, stride, up, rank);
}

void rotate(float* head, const float* cos, const float* sin, int64_t dim) {
  const int64_t half = dim / 2;
  for (int64_t i = 0; i < half; i += kLanes) {
    const int64_t n = half - i < kLanes ? half - i : kLanes;
    float *low = head + i, *high = low + half;
    const Lanes a = load_at_most(low, n), b = load_at_most(high, n);
    const Lanes first = mul(a, load_at_most(cos + i, n)), second = mul(b, load_at_most(cos + half + i, n));
    store_at_most(low, fma(mul(b, splat(-1.0f)), load_at_most(sin + i, n), first), n);
    store_at_most(high, fma(a, load_at_most(sin + half + i, n), second), n);
  }
}

SF_INLINE Lanes silu(Lanes x) {
  const Lanes e = exp_of_nonpositive(mul(magnitude(x), splat(-1.0f)));
  return div(positive_or(x, x, mul(x, e)), add(splat(1.0f), e));
}

void gate(const float* tiles, int64_t rows, int64_t row, const Rounded& to, int64_t group, float* gated) {
  const auto half = [&](int64_t tile) {
    const float* gate = tiles + (tile * rows + row) * kLanes;
    return mul(silu(load(gate)), load(gate + rows * kLanes));
  };
  const Lanes low = half(0), high = half(2);
  if (gated != nullptr) store(gated, low), store(gated + kLanes, high);
  round_group(low, high, to, row, group);
}

void keep_best(const float* values, int64_t count, int64_t first_id, Best* best) {
  const bool later = first_id > best->id;  // stolen chunks do not come in order
  if (later && count == kLanes && !any_greater(load(values), splat(best->value))) return;
  for (int64_t i = 0; i < count; ++i)
    if (values[i] > best->value || (values[i] == best->value && first_id + i < best->id))
      *best = {values[i], first_id + i};
}

uint64_t read(const void* data, size_t bytes) {
  typedef uint64_t Words __attribute__((vector_size(kNativeBytes), aligned(1), may_alias));
  const char* p = (const char*)data;
  Words sums[8] = {};
  size_t i = 0;
  for (; i + 8 * kNativeBytes <= bytes; i += 8 * kNativeBytes)
    for (int j = 0; j < 8; ++j) {
      if (j * kNativeBytes % 64 == 0) __builtin_prefetch(p + i + 4096 + j * kNativeBytes);
      sums[j] ^= *(const Words*)(p + i + j * kNativeBytes);
    }
  uint64_t total = 0;
  for (int j = 0; j < 8; ++j)
    for (int l = 0; l < kNativeBytes / 8; ++l) total ^= sums[j][l];
  return total;
}

}  // namespace
}  // namespace STREAMFUSE_ISA
}  // namespace streamfuse
