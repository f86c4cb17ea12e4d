// The row-wise operations around a packed product: norm, quantization, adapters, rotation, gate. Included by
// product_kernels.cpp.
#pragma once

#include "groups.h"
#include "product_kernels.h"

namespace streamfuse {
namespace STREAMFUSE_ISA {
namespace {

constexpr float kSmallestScale = 1.17549435e-38f;  // below it the group is stored as zeros; 1 / scale stays finite

// q = round(x * inverse), half to even, of a group; returns vectors of integers to be summed.
#if defined(__AVX2__)
SF_INLINE EightInts round_by(const float* x, float inverse, int8_t* q) {
  const Eight magic = Eight{} + kRoundingMagic;
  __m256i whole[4];
  for (int i = 0; i < 4; ++i)
    whole[i] = (__m256i)((EightInts)((Eight)_mm256_loadu_ps(x + 8 * i) * inverse + magic) - (EightInts)magic);
  // Packing works within the 128-bit halves of a register, four values at a time.
  const __m256i low = _mm256_packs_epi32(whole[0], whole[1]), high = _mm256_packs_epi32(whole[2], whole[3]);
  const __m256i places = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  _mm256_storeu_si256((__m256i*)q, _mm256_permutevar8x32_epi32(_mm256_packs_epi16(low, high), places));
  return ((EightInts)whole[0] + (EightInts)whole[1]) + ((EightInts)whole[2] + (EightInts)whole[3]);
}
SF_INLINE int32_t added_up(EightInts a) {
  const __m256i all = (__m256i)a;
  __m128i four = _mm_add_epi32(_mm256_castsi256_si128(all), _mm256_extracti128_si256(all, 1));
  four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(four, _mm_shuffle_epi32(four, 0xb1)));
}
#else
SF_INLINE NativeInt round_by(const float* x, float inverse, int8_t* q) {
  return round_lanes(load(x), inverse, q) + round_lanes(load(x + kLanes), inverse, q + kLanes);
}
SF_INLINE int32_t added_up(NativeInt a) {
#if defined(__aarch64__)
  return vaddvq_s32(a);
#else
  int32_t sum = 0;
  for (int l = 0; l < kNativeBytes / 4; ++l) sum += a[l];
  return sum;
#endif
}
#endif

// Quantizes one group into entry `at` of `to`, which is group * rows + row.
SF_INLINE void round_group(const float* x, const Rounded& to, int64_t at) {
  float scale = largest(max(magnitude(load(x)), magnitude(load(x + kLanes)))) / 127.0f;
  if (!(scale >= kSmallestScale)) scale = scale == scale ? 0.0f : scale;
  const float inverse = scale == 0.0f ? 0.0f : 1.0f / scale;
#if defined(__ARM_FEATURE_MATMUL_INT8)
  int8_t q[kGroupSize];
#else
  int8_t* const q = to.q + at * kGroupSize;
#endif
  const int32_t sum = added_up(round_by(x, inverse, q));
#if defined(__ARM_FEATURE_MATMUL_INT8)
  place_group(q, to.q + at / to.rows * to.rows * kGroupSize, at % to.rows, to.rows);
#endif
  to.scale[at] = scale;
  to.share[at] = scale * (float)sum;
  to.start[at] = (int32_t)(-128u * (uint32_t)sum);  // unsigned, because NaNs give arbitrary sums
}

#if defined(__AVX2__)
// Quantizes up to eight groups, whose entries are `step` apart. The per-group arithmetic fills a register of eight
// lanes, also on machines with sixteen.
SF_INLINE void round_eight(const float* x, int count, const Rounded& to, int64_t at, int64_t step) {
  const auto greater = [](Eight a, Eight b) { return a > b ? a : b; };
  const auto plus = [](Eight a, Eight b) { return (Eight)((EightInts)a + (EightInts)b); };
  const auto size = [](const float* p) { return (Eight)((EightInts)_mm256_loadu_ps(p) & 0x7fffffff); };
  const Eight zero = {};
  Eight of_group[8] = {};
  for (int i = 0; i < count; ++i) {
    const float* const group = x + i * kGroupSize;
    of_group[i] = greater(greater(size(group), size(group + 8)), greater(size(group + 16), size(group + 24)));
  }
  Eight scale = fold_eight(of_group, greater) / 127.0f;
  scale = scale < kSmallestScale ? zero : scale;
  const Eight inverse = scale == 0.0f ? zero : 1.0f / scale;
  float scales[8], inverses[8], shares[8];
  int32_t starts[8];
  memcpy(inverses, &inverse, sizeof inverse);
  for (int i = 0; i < count; ++i)
    of_group[i] = (Eight)round_by(x + i * kGroupSize, inverses[i], to.q + (at + i * step) * kGroupSize);
  const EightInts sum = (EightInts)fold_eight(of_group, plus), start = sum * -128;
  const Eight share = scale * __builtin_convertvector(sum, Eight);
  memcpy(scales, &scale, sizeof scale);
  memcpy(shares, &share, sizeof share);
  memcpy(starts, &start, sizeof start);
  for (int i = 0; i < count; ++i) {
    const int64_t place = at + i * step;
    to.scale[place] = scales[i];
    to.share[place] = shares[i];
    to.start[place] = starts[i];
  }
}
#endif

// Quantizes `count` groups starting at x, whose entries are `step` apart.
SF_INLINE void round_groups(const float* x, int64_t count, const Rounded& to, int64_t at, int64_t step) {
  int64_t i = 0;
#if defined(__AVX2__)
  for (; i + 8 <= count; i += 8) round_eight(x + i * kGroupSize, 8, to, at + i * step, step);
  if (count - i > 2) {
    round_eight(x + i * kGroupSize, (int)(count - i), to, at + i * step, step);
    i = count;
  }
#endif
  for (; i < count; ++i) round_group(x + i * kGroupSize, to, at + i * step);
}

void round(const float* x, const Rounded& to, int64_t row) { round_groups(x, to.groups, to, row, to.rows); }

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

// Rows of `size` values of type T, `step` bytes apart.
template <typename T>
SF_INLINE void dots_of(const float* x, const uint8_t* matrix, int64_t step, int64_t count, int64_t size, float* out) {
  const auto at = [=](int64_t j) { return (const T*)(matrix + j * step); };
  int64_t j = 0;
  for (; j + 4 <= count; j += 4) {
    const T* rows[4] = {at(j), at(j + 1), at(j + 2), at(j + 3)};
    dot_block<4>(x, rows, size, out + j);
  }
  for (; j < count; ++j) {
    const T* row = at(j);
    dot_block<1>(x, &row, size, out + j);
  }
}

void dots(const float* x, const uint8_t* matrix, bool is_int8, int64_t count, int64_t size, float* out) {
  if (!is_int8) return dots_of<uint16_t>(x, matrix, 2 * size, count, size, out);
  const int64_t step = size + (int64_t)sizeof(float);
  dots_of<int8_t>(x, matrix, step, count, size, out);
  for (int64_t j = 0; j < count; ++j) {
    float factor;
    memcpy(&factor, matrix + j * step + size, sizeof factor);
    out[j] *= factor;
  }
}

// The squares of a row are added in order, each addition depending on the one before; different rows are independent.
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

template <int Rows, typename T>
SF_INLINE void adapt_block(float* acc, const float* inner, int64_t stride, const T* up, int64_t rank) {
  Lanes sums[Rows];
  for (int r = 0; r < Rows; ++r) sums[r] = load(acc + r * kLanes);
  for (int64_t j = 0; j < rank; ++j) {
    const Lanes column = load(up + j * kLanes);
    for (int r = 0; r < Rows; ++r) sums[r] = fma(column, splat(inner[r * stride + j]), sums[r]);
  }
  for (int r = 0; r < Rows; ++r) store(acc + r * kLanes, sums[r]);
}

template <typename T>
SF_INLINE void adapt_of(float* acc, int64_t rows, const float* inner, int64_t stride, const T* up, int64_t rank) {
  for (; rows >= 8; rows -= 8, acc += 8 * kLanes, inner += 8 * stride) adapt_block<8>(acc, inner, stride, up, rank);
  for (; rows >= 4; rows -= 4, acc += 4 * kLanes, inner += 4 * stride) adapt_block<4>(acc, inner, stride, up, rank);
  for (; rows > 0; --rows, acc += kLanes, inner += stride) adapt_block<1>(acc, inner, stride, up, rank);
}

void adapt(float* acc, int64_t rows, const float* inner, int64_t stride, const uint8_t* up, bool is_int8,
           int64_t rank) {
  if (is_int8)
    adapt_of(acc, rows, inner, stride, (const int8_t*)up, rank);
  else
    adapt_of(acc, rows, inner, stride, (const uint16_t*)up, rank);
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

// x / (1 + exp(-z)).
SF_INLINE Lanes times_sigmoid(Lanes x, Lanes z) {
  const Lanes e = exp_of_nonpositive(mul(magnitude(z), splat(-1.0f)));
  return div(positive_or(z, x, mul(x, e)), add(splat(1.0f), e));
}

void scale_by_sigmoid(const float* x, float gate, int64_t size, float* out) {
  for (int64_t i = 0; i < size; i += kLanes) {
    const int64_t n = size - i < kLanes ? size - i : kLanes;
    store_at_most(out + i, times_sigmoid(load_at_most(x + i, n), splat(gate)), n);
  }
}

void scale_by_sigmoids(const float* x, const float* gates, int64_t size, float* out) {
  for (int64_t i = 0; i < size; i += kLanes) {
    const int64_t n = size - i < kLanes ? size - i : kLanes;
    store_at_most(out + i, times_sigmoid(load_at_most(x + i, n), load_at_most(gates + i, n)), n);
  }
}

void convolve(const float* const* rows, const float* taps, int64_t count, int64_t channels, float* out) {
  for (int64_t c = 0; c < channels; c += kLanes) {
    const int64_t n = channels - c < kLanes ? channels - c : kLanes;
    Lanes total = splat(0.0f);
    for (int64_t tap = 0; tap < count; ++tap)
      total = add(total, mul(load_at_most(taps + tap * channels + c, n), load_at_most(rows[tap] + c, n)));
    store_at_most(out + c, times_sigmoid(total, total), n);
  }
}

// Columns of S, `Blocks` times 16, or the last ones of `size`. There are two sums over key_dim, of even and of odd
// rows, to hide the latency of the fused multiply-add.
template <int Blocks>
SF_INLINE void delta_block(const DeltaStep& a, int64_t size) {
  const float *const from = a.from, *const v = a.v;
  Lanes from_k[2][Blocks], change[Blocks], sums[2][Blocks];
  for (int b = 0; b < Blocks; ++b) from_k[0][b] = from_k[1][b] = sums[0][b] = sums[1][b] = splat(0.0f);
  const Lanes decay = splat(a.decay);
  const auto read = [=](int64_t i, int b) {
    return load_at_most(from + i * a.from_stride + b * kLanes, size - b * kLanes);
  };
  int64_t i = 0;
  for (; i + 2 <= a.key_dim; i += 2)
    for (int half = 0; half < 2; ++half)
      for (int b = 0; b < Blocks; ++b) from_k[half][b] = fma(read(i + half, b), splat(a.k[i + half]), from_k[half][b]);
  if (i < a.key_dim)
    for (int b = 0; b < Blocks; ++b) from_k[0][b] = fma(read(i, b), splat(a.k[i]), from_k[0][b]);
  for (int b = 0; b < Blocks; ++b) {
    const Lanes minus_predicted = mul(add(from_k[0][b], from_k[1][b]), splat(-a.decay));
    change[b] = mul(add(load_at_most(v + b * kLanes, size - b * kLanes), minus_predicted), splat(a.beta));
  }
  const auto step = [&](int64_t i, int half) {
    for (int b = 0; b < Blocks; ++b) {
      const Lanes state = fma(splat(a.k[i]), change[b], mul(read(i, b), decay));
      store_at_most(a.to + i * a.to_stride + b * kLanes, state, size - b * kLanes);
      sums[half][b] = fma(state, splat(a.q[i]), sums[half][b]);
    }
  };
  for (i = 0; i + 2 <= a.key_dim; i += 2) {
    step(i, 0);
    step(i + 1, 1);
  }
  if (i < a.key_dim) step(i, 0);
  for (int b = 0; b < Blocks; ++b) store_at_most(a.out + b * kLanes, add(sums[0][b], sums[1][b]), size - b * kLanes);
}

void delta_step(const DeltaStep& args, int64_t columns) {
  DeltaStep a = args;
  for (; columns > 0; columns -= 2 * kLanes) {
    if (columns >= 2 * kLanes)
      delta_block<2>(a, 2 * kLanes);
    else if (columns > kLanes)
      delta_block<2>(a, columns);
    else
      delta_block<1>(a, columns);
    a.from += 2 * kLanes;
    a.to += 2 * kLanes;
    a.v += 2 * kLanes;
    a.out += 2 * kLanes;
  }
}

SF_INLINE Lanes silu(Lanes x) { return times_sigmoid(x, x); }

// x (1 + tanh(y)) / 2 with y = sqrt(2 / pi) (x + 0.044715 x^3), which is x / (1 + exp(-2 y)).
SF_INLINE Lanes gelu(Lanes x) {
  return times_sigmoid(x, mul(x, fma(mul(x, x), splat(0.0713548162726f), splat(1.59576912161f))));
}

void scale_by_gelus(const float* x, const float* gates, int64_t size, float* out) {
  for (int64_t i = 0; i < size; i += kLanes)
    store_at_most(out + i, mul(gelu(load_at_most(gates + i, size - i)), load_at_most(x + i, size - i)), size - i);
}

template <Activation kActivation>
void gate_by(const float* tiles, int64_t rows, const Rounded& to, int64_t group, float* gated, int64_t first,
             int64_t stride) {
  constexpr int64_t kTogether = 16;  // rows that stay in the L1 cache until they are quantized
  alignas(64) float values[kTogether * kGroupSize];
  for (int64_t begin = 0; begin < rows; begin += kTogether) {
    const int64_t count = rows - begin < kTogether ? rows - begin : kTogether;
    for (int64_t i = 0; i < count; ++i)
      for (int64_t half = 0; half < 2; ++half) {
        const float* const gate = tiles + (2 * half * rows + begin + i) * kLanes;
        const Lanes x = load(gate), activated = kActivation == Activation::kSilu ? silu(x) : gelu(x);
        store(values + i * kGroupSize + half * kLanes, mul(activated, load(gate + rows * kLanes)));
      }
    for (int64_t i = first > begin ? first - begin : 0; gated != nullptr && i < count; ++i)
      memcpy(gated + (begin + i - first) * stride + group * kGroupSize, values + i * kGroupSize,
             kGroupSize * sizeof(float));
    round_groups(values, count, to, group * to.rows + begin, 1);
  }
}

void gate(Activation activation, const float* tiles, int64_t rows, const Rounded& to, int64_t group, float* gated,
          int64_t first, int64_t stride) {
  if (activation == Activation::kSilu)
    gate_by<Activation::kSilu>(tiles, rows, to, group, gated, first, stride);
  else
    gate_by<Activation::kGelu>(tiles, rows, to, group, gated, first, stride);
}

void keep_best(const float* values, int64_t count, int64_t first_id, Best* best) {
  const bool later = first_id > best->id;  // stolen chunks arrive out of order
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
