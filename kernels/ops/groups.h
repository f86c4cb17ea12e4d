// One group (32 inputs) of a tile's weights in registers, and its integer dot products with a row's quantized
// activations. A part is as many of the tile's 16 outputs as one register of this instruction set holds. Sums are exact
// in int32, so their order does not matter.
#pragma once

#include "lanes.h"
#include "packed.h"

namespace streamfuse {
namespace STREAMFUSE_ISA {

SF_INLINE int32_t quad_at(const int8_t* q) {
  int32_t quad;
  memcpy(&quad, q, 4);
  return quad;
}

// Prefetches the bytes of one group: kAhead after w into L1 and, for weights, kAheadL2 after w into L2.
template <bool Q8, bool IsWeight>
SF_INLINE void prefetch_ahead(const uint8_t* w) {
  constexpr int64_t kBytes = Q8 ? kQ8TileBytes : kQ4TileBytes;
  for (int64_t line = 0; line < kBytes; line += 64) __builtin_prefetch(w + kAhead + line);
  if (!IsWeight) return;
  for (int64_t line = 0; line < kBytes; line += 64) __builtin_prefetch(w + kAheadL2 + line, 0, 2);
}

#if defined(__AVX512VNNI__)

typedef int32_t QuadUnaligned __attribute__((aligned(1), may_alias));

// sums + w * the four activations at q. The operand is broadcast from memory by the instruction itself: for intrinsics,
// GCC 12 emits a separate broadcast, which makes a product of 8 rows a sixth slower.
SF_INLINE __m512i add_products(__m512i sums, __m512i w, const int8_t* q) {
  asm("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(sums) : "v"(w), "m"(*(const QuadUnaligned*)q));
  return sums;
}

template <bool Q8>
struct Group {
  __m512i v[8];

  SF_INLINE_MEMBER void load(const uint8_t* w, int) {
    const __m512i low = _mm512_set1_epi8(15);
    for (int i = 0; i < 4; ++i) {
      const __m512i bytes = _mm512_loadu_si512(w + 64 * i);
      v[i] = Q8 ? bytes : _mm512_and_si512(bytes, low);
      v[4 + i] = Q8 ? _mm512_loadu_si512(w + 256 + 64 * i) : _mm512_and_si512(_mm512_srli_epi16(bytes, 4), low);
    }
  }
  template <int N>
  SF_INLINE_MEMBER void dots_of(const int8_t* q, const int32_t* start, Native* out) const {
    __m512i acc[N];
    for (int r = 0; r < N; ++r) acc[r] = _mm512_set1_epi32(Q8 ? start[r] : 0);
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i)
      for (int r = 0; r < N; ++r)
        acc[r] = add_products(acc[r], v[i], q + r * kGroupSize + 4 * i);
    for (int r = 0; r < N; ++r) out[r] = _mm512_cvtepi32_ps(acc[r]);
  }
};

#elif defined(__aarch64__)

template <bool Q8>
struct Group {
  int8x16_t v[8];

  SF_INLINE_MEMBER void load(const uint8_t* w, int part) {
    for (int i = 0; i < 4; ++i) {
      const uint8x16_t bytes = vld1q_u8(w + 64 * i + 16 * part);
      const uint8x16_t more = Q8 ? vld1q_u8(w + 256 + 64 * i + 16 * part) : vshrq_n_u8(bytes, 4);
      v[i] = vreinterpretq_s8_u8(Q8 ? veorq_u8(bytes, vdupq_n_u8(128)) : vandq_u8(bytes, vdupq_n_u8(15)));
      v[4 + i] = vreinterpretq_s8_u8(Q8 ? veorq_u8(more, vdupq_n_u8(128)) : more);
    }
  }
  SF_INLINE_MEMBER Native dots(const int8_t* q, int32_t) const {
    int32x4_t acc = vdupq_n_s32(0);
#if defined(__ARM_FEATURE_DOTPROD)
    const int8x16_t first = vld1q_s8(q), second = vld1q_s8(q + 16);
    acc = vdotq_laneq_s32(acc, v[0], first, 0);
    acc = vdotq_laneq_s32(acc, v[1], first, 1);
    acc = vdotq_laneq_s32(acc, v[2], first, 2);
    acc = vdotq_laneq_s32(acc, v[3], first, 3);
    acc = vdotq_laneq_s32(acc, v[4], second, 0);
    acc = vdotq_laneq_s32(acc, v[5], second, 1);
    acc = vdotq_laneq_s32(acc, v[6], second, 2);
    acc = vdotq_laneq_s32(acc, v[7], second, 3);
#else
    for (int i = 0; i < 8; ++i) {
      const int8x16_t quad = vreinterpretq_s8_s32(vdupq_n_s32(quad_at(q + 4 * i)));
      const int32x4_t low = vpaddlq_s16(vmull_s8(vget_low_s8(v[i]), vget_low_s8(quad)));
      const int32x4_t high = vpaddlq_s16(vmull_s8(vget_high_s8(v[i]), vget_high_s8(quad)));
      acc = vaddq_s32(acc, vpaddq_s32(low, high));
    }
#endif
    return vcvtq_f32_s32(acc);
  }
};

#if defined(__ARM_FEATURE_MATMUL_INT8)
// The same for two rows at a time: one instruction multiplies 2 rows with 2 outputs over 8 inputs. place_group below
// stores the rows in the layout that it needs.
template <bool Q8>
struct PairGroup {
  int8x16_t low[4], high[4];  // outputs 0 and 1, outputs 2 and 3; eight inputs each

  SF_INLINE_MEMBER void load(const uint8_t* w, int part) {
    Group<Q8> group;
    group.load(w, part);
    for (int i = 0; i < 4; ++i) {
      const int32x4_t first = vreinterpretq_s32_s8(group.v[2 * i]), second = vreinterpretq_s32_s8(group.v[2 * i + 1]);
      low[i] = vreinterpretq_s8_s32(vzip1q_s32(first, second));
      high[i] = vreinterpretq_s8_s32(vzip2q_s32(first, second));
    }
  }
  // Dot products of the rows at q and after it; with `alone`, of the row at q in both results.
  SF_INLINE_MEMBER void dots(const int8_t* q, bool alone, Native* out0, Native* out1) const {
    int32x4_t outputs01 = vdupq_n_s32(0), outputs23 = outputs01;  // the first row in the lower half
    for (int i = 0; i < 4; ++i) {
      const int8x16_t rows =
          alone ? vreinterpretq_s8_s64(vld1q_dup_s64((const int64_t*)(q + 8 * i))) : vld1q_s8(q + 16 * i);
      outputs01 = vmmlaq_s32(outputs01, rows, low[i]);
      outputs23 = vmmlaq_s32(outputs23, rows, high[i]);
    }
    const int64x2_t a = vreinterpretq_s64_s32(outputs01), b = vreinterpretq_s64_s32(outputs23);
    *out0 = vcvtq_f32_s32(vreinterpretq_s32_s64(vtrn1q_s64(a, b)));
    *out1 = vcvtq_f32_s32(vreinterpretq_s32_s64(vtrn2q_s64(a, b)));
  }
};

// Copies a row's 32 quantized values of one group to their place among those of all `rows`: rows 2 i and 2 i + 1
// alternate every eight values; an odd last row is stored contiguously.
SF_INLINE void place_group(const int8_t* q, int8_t* group, int64_t row, int64_t rows) {
  const bool alone = (row | 1) >= rows;
  int8_t* const place = group + (row & ~(int64_t)1) * kGroupSize + (row & 1) * 8;
  for (int i = 0; i < 4; ++i) memcpy(place + (alone ? 8 : 16) * i, q + 8 * i, 8);
}
#endif

#else

template <bool Q8>
struct Group {
  uint8_t v[8][16];

  SF_INLINE_MEMBER void load(const uint8_t* w, int part) {
    for (int i = 0; i < 4; ++i)
      for (int b = 0; b < 16; ++b) {
        const uint8_t byte = w[64 * i + 16 * part + b];
        v[i][b] = Q8 ? byte : byte & 15;
        v[4 + i][b] = Q8 ? w[256 + 64 * i + 16 * part + b] : byte >> 4;
      }
  }
  SF_INLINE_MEMBER Native dots(const int8_t* q, int32_t start) const {
    Native r;
    for (int l = 0; l < 4; ++l) {
      int32_t acc = Q8 ? start : 0;
      for (int i = 0; i < 8; ++i)
        for (int b = 0; b < 4; ++b) acc += v[i][4 * l + b] * q[4 * i + b];
      r[l] = (float)acc;
    }
    return r;
  }
};

#endif

}  // namespace STREAMFUSE_ISA
}  // namespace streamfuse
