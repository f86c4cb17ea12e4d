// Sixteen float lanes that behave identically on every instruction set.
//
// All operators compute with `Lanes`. Every operation has the same operand order, the same number of roundings and the
// same reduction tree for every register width, so AVX-512, AVX2+FMA, NEON and the portable build (which computes the
// fused multiply-add in double precision with rounding to odd) give the same bits. Multiply-adds are fused only by
// calling `fma` (rounding.h).
//
// This header is compiled into one library once per instruction set. So everything is in the namespace STREAMFUSE_ISA,
// and no inline functions of the C++ standard library are used: a linker keeps only one copy of them, which could be
// one that this CPU cannot run.
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__AVX2__) || defined(__AVX512F__)
#include <immintrin.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#endif

#ifndef STREAMFUSE_ISA
#error "define STREAMFUSE_ISA, the namespace of this instruction set"
#endif

namespace streamfuse {
namespace STREAMFUSE_ISA {

constexpr int kLanes = 16;

#if defined(__AVX512F__)
constexpr int kNativeBytes = 64;
#elif defined(__AVX2__)
constexpr int kNativeBytes = 32;
#else
constexpr int kNativeBytes = 16;
#endif
constexpr int kParts = kLanes * 4 / kNativeBytes;

typedef float Native __attribute__((vector_size(kNativeBytes)));
typedef int32_t NativeInt __attribute__((vector_size(kNativeBytes)));
typedef Native NativeUnaligned __attribute__((aligned(4), may_alias));

#define SF_STRINGIFY_(x) #x
#define SF_STRINGIFY(x) SF_STRINGIFY_(x)
#define SF_INLINE static inline __attribute__((always_inline))
#define SF_INLINE_MEMBER inline __attribute__((always_inline))

SF_INLINE Native native_splat(float x) { return x - Native{}; }

#if !defined(__FMA__) && !defined(__aarch64__)
// a * b is exact in double; rounding the sum with c to odd keeps the information that rounding to float needs.
SF_INLINE float fma_by_double(float a, float b, float c) {
  const double product = (double)a * b, addend = c;
  double sum = product + addend;
  const double part = sum - product, error = (product - (sum - part)) + (addend - part);
  int64_t bits;
  memcpy(&bits, &sum, 8);
  if ((error > 0 || error < 0) && (bits & 1) == 0) {
    bits += (error > 0) == (sum > 0) ? 1 : -1;
    memcpy(&sum, &bits, 8);
  }
  return (float)sum;
}
#endif

SF_INLINE Native native_fma(Native a, Native b, Native c) {
#if defined(__AVX512F__)
  return _mm512_fmadd_ps(a, b, c);
#elif defined(__AVX2__)
  return _mm256_fmadd_ps(a, b, c);
#elif defined(__aarch64__)
  return vfmaq_f32(c, a, b);
#else
  for (int l = 0; l < kNativeBytes / 4; ++l) c[l] = fma_by_double(a[l], b[l], c[l]);
  return c;
#endif
}

// float16 to float32, exact, from its bits.
static inline float half_at(const uint8_t* p) {
  uint16_t h;
  memcpy(&h, p, 2);
  const uint32_t sign = (uint32_t)(h & 0x8000) << 16, exponent = h >> 10 & 31, fraction = h & 1023;
  if (exponent == 0) return (sign ? -1.0f : 1.0f) * (float)fraction * 5.9604644775390625e-8f;  // 2^-24
  const uint32_t bits = sign | (exponent == 31 ? 255u : exponent + 112) << 23 | fraction << 13;
  float x;
  memcpy(&x, &bits, 4);
  return x;
}

// One register of float16 values as float32, exact; p may be unaligned.
SF_INLINE Native halves(const uint8_t* p) {
#if defined(__AVX512F__)
  return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p));
#elif defined(__AVX2__)
  return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p));
#elif defined(__aarch64__)
  return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(p)));
#else
  Native r;
  for (int l = 0; l < kNativeBytes / 4; ++l) r[l] = half_at(p + 2 * l);
  return r;
#endif
}

struct Lanes {
  Native part[kParts];
};

#define SF_EACH_PART _Pragma("GCC unroll 4") for (int i = 0; i < kParts; ++i)

SF_INLINE Lanes splat(float x) {
  Lanes r;
  SF_EACH_PART r.part[i] = native_splat(x);
  return r;
}

SF_INLINE Lanes load(const float* p) {
  Lanes r;
  SF_EACH_PART r.part[i] = ((const NativeUnaligned*)p)[i];
  return r;
}

// Loads float16 values.
SF_INLINE Lanes load(const uint16_t* p) {
  Lanes r;
  SF_EACH_PART r.part[i] = halves((const uint8_t*)p + i * (kNativeBytes / 2));
  return r;
}

// Loads integers.
SF_INLINE Lanes load(const int8_t* p) {
  typedef int8_t Bytes __attribute__((vector_size(kNativeBytes / 4)));
  Lanes r;
  SF_EACH_PART {
    Bytes bytes;
    memcpy(&bytes, p + i * (kNativeBytes / 4), sizeof bytes);
    r.part[i] = __builtin_convertvector(__builtin_convertvector(bytes, NativeInt), Native);
  }
  return r;
}

SF_INLINE Lanes load_first(const int8_t* p, int count) {
  int8_t whole[kLanes] = {0};
  memcpy(whole, p, (size_t)count);
  return load(whole);
}

SF_INLINE Lanes load_first(const uint16_t* p, int count) {
  uint16_t whole[kLanes] = {0};
  memcpy(whole, p, (size_t)count * sizeof(uint16_t));
  return load(whole);
}

// Loads the first `count` of 16 floats, the rest are zero. Does not read beyond them.
SF_INLINE Lanes load_first(const float* p, int count) {
#if defined(__AVX512F__)
  Lanes r;
  r.part[0] = _mm512_maskz_loadu_ps((__mmask16)((1u << count) - 1u), p);
  return r;
#else
  float whole[kLanes] = {0};
  memcpy(whole, p, (size_t)count * sizeof(float));
  return load(whole);
#endif
}

SF_INLINE void store(float* p, Lanes a) { SF_EACH_PART((NativeUnaligned*)p)[i] = a.part[i]; }

SF_INLINE void store_first(float* p, Lanes a, int count) {
  float whole[kLanes];
  store(whole, a);
  memcpy(p, whole, (size_t)count * sizeof(float));
}

// a * b + c, rounded once.
SF_INLINE Lanes fma(Lanes a, Lanes b, Lanes c) {
  SF_EACH_PART c.part[i] = native_fma(a.part[i], b.part[i], c.part[i]);
  return c;
}

SF_INLINE Lanes add(Lanes a, Lanes b) {
  SF_EACH_PART a.part[i] = a.part[i] + b.part[i];
  return a;
}

SF_INLINE Lanes mul(Lanes a, Lanes b) {
  SF_EACH_PART a.part[i] = a.part[i] * b.part[i];
  return a;
}

SF_INLINE Lanes div(Lanes a, Lanes b) {
  SF_EACH_PART a.part[i] = a.part[i] / b.part[i];
  return a;
}

SF_INLINE Lanes max(Lanes a, Lanes b) {
  SF_EACH_PART a.part[i] = a.part[i] > b.part[i] ? a.part[i] : b.part[i];
  return a;
}

SF_INLINE Lanes min(Lanes a, Lanes b) {
  SF_EACH_PART a.part[i] = a.part[i] < b.part[i] ? a.part[i] : b.part[i];
  return a;
}

SF_INLINE Lanes magnitude(Lanes a) {
  SF_EACH_PART a.part[i] = (Native)((NativeInt)a.part[i] & 0x7fffffff);
  return a;
}

// a if x >= 0, else b
SF_INLINE Lanes positive_or(Lanes x, Lanes a, Lanes b) {
  SF_EACH_PART x.part[i] = x.part[i] >= 0.0f ? a.part[i] : b.part[i];
  return x;
}

constexpr float kRoundingMagic = 12582912.0f;  // 1.5 * 2^23: adding it leaves the integer in the low bits

// q = round(a * inverse), half to even, as int8; returns the integers, for summing. |a * inverse| must be below 128.
SF_INLINE NativeInt round_lanes(Lanes a, float inverse, int8_t* q) {
  typedef int8_t Bytes __attribute__((vector_size(kNativeBytes / 4)));
  const Native magic = native_splat(kRoundingMagic);
  NativeInt total = {};
  SF_EACH_PART {
    const NativeInt whole = (NativeInt)(a.part[i] * native_splat(inverse) + magic) - (NativeInt)magic;
    const Bytes bytes = __builtin_convertvector(whole, Bytes);
    memcpy(q + i * (kNativeBytes / 4), &bytes, sizeof bytes);
    total += whole;
  }
  return total;
}

// Whether any lane of a is greater than the same lane of b.
SF_INLINE bool any_greater(Lanes a, Lanes b) {
#if defined(__AVX512F__)
  return _mm512_cmp_ps_mask(a.part[0], b.part[0], _CMP_GT_OQ) != 0;
#elif defined(__AVX2__)
  Native any = (Native)(a.part[0] > b.part[0]);
  for (int i = 1; i < kParts; ++i) any = _mm256_or_ps(any, (Native)(a.part[i] > b.part[i]));
  return _mm256_movemask_ps(any) != 0;
#else
  NativeInt any = a.part[0] > b.part[0];
  for (int i = 1; i < kParts; ++i) any |= a.part[i] > b.part[i];
  int found = 0;
  for (int l = 0; l < kNativeBytes / 4; ++l) found |= any[l];
  return found != 0;
#endif
}

// The reduction tree: lane l with l + 8, then + 4, + 2, + 1.
#define SF_FOLD(NAME, OP)                                          \
  SF_INLINE float NAME(Lanes a) {                                  \
    float v[kLanes];                                               \
    store(v, a);                                                   \
    for (int half = kLanes / 2; half > 0; half /= 2)               \
      for (int l = 0; l < half; ++l) v[l] = OP(v[l], v[l + half]); \
    return v[0];                                                   \
  }
#define SF_PLUS(a, b) ((a) + (b))
#define SF_GREATER(a, b) ((a) > (b) ? (a) : (b))

#if defined(__AVX2__) || defined(__AVX512F__)
SF_INLINE __m128 fold4(__m256 v) { return _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1)); }
SF_INLINE __m128 lanes_to_4(Lanes a) {
#if defined(__AVX512F__)
  const __m256 high = _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(a.part[0]), 1));
  return fold4(_mm256_add_ps(_mm512_castps512_ps256(a.part[0]), high));
#else
  return fold4(_mm256_add_ps(a.part[0], a.part[1]));
#endif
}
SF_INLINE float sum(Lanes a) {
  __m128 v = lanes_to_4(a);
  v = _mm_add_ps(v, _mm_movehl_ps(v, v));
  v = _mm_add_ss(v, _mm_movehdup_ps(v));
  return _mm_cvtss_f32(v);
}
#elif defined(__aarch64__)
SF_INLINE float sum(Lanes a) {
  const float32x4_t v = vaddq_f32(vaddq_f32(a.part[0], a.part[2]), vaddq_f32(a.part[1], a.part[3]));
  const float32x2_t w = vadd_f32(vget_low_f32(v), vget_high_f32(v));
  return vget_lane_f32(w, 0) + vget_lane_f32(w, 1);
}
#else
SF_FOLD(sum, SF_PLUS)
#endif
#if defined(__AVX2__)
typedef float Eight __attribute__((vector_size(32)));
typedef int32_t EightInts __attribute__((vector_size(32)));

// Reduces each of 8 registers to one value by transposing the block: lane i of the result is that of a[i].
template <typename Op>
SF_INLINE Eight fold_eight(const Eight* a, Op op) {
  __m256 by4[4], by2[2];
  for (int i = 0; i < 4; ++i) {
    const __m256 x = a[2 * i], y = a[2 * i + 1];
    by4[i] = op(_mm256_permute2f128_ps(x, y, 0x20), _mm256_permute2f128_ps(x, y, 0x31));
  }
  for (int i = 0; i < 2; ++i) {
    const __m256d x = _mm256_castps_pd(by4[2 * i]), y = _mm256_castps_pd(by4[2 * i + 1]);
    by2[i] = op(_mm256_castpd_ps(_mm256_unpacklo_pd(x, y)), _mm256_castpd_ps(_mm256_unpackhi_pd(x, y)));
  }
  const __m256i places = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  return _mm256_permutevar8x32_ps(op(_mm256_shuffle_ps(by2[0], by2[1], 0x88), _mm256_shuffle_ps(by2[0], by2[1], 0xdd)),
                                  places);
}

#endif
// A maximum does not depend on the order.
#if defined(__AVX512F__)
SF_INLINE float largest(Lanes a) { return _mm512_reduce_max_ps(a.part[0]); }
#elif defined(__AVX2__)
SF_INLINE float largest(Lanes a) {
  const __m256 eight = _mm256_max_ps(a.part[0], a.part[1]);
  __m128 v = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  v = _mm_max_ps(v, _mm_movehl_ps(v, v));
  return _mm_cvtss_f32(_mm_max_ss(v, _mm_movehdup_ps(v)));
}
#else
SF_FOLD(largest, SF_GREATER)
#endif

// exp(x) for x <= 0, relative error about 1e-7; zero below -86. x = n ln 2 + r with |r| <= ln 2 / 2; a polynomial of
// degree 6 in r, then n is added to the exponent bits (the result is normal, since n >= -125).
SF_INLINE Lanes exp_of_nonpositive(Lanes x) {
  const Native magic = native_splat(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer in the low bits
  SF_EACH_PART {
    const Native bounded = x.part[i] > -86.0f ? x.part[i] : native_splat(-86.0f);
    const Native shifted = native_fma(bounded, native_splat(1.44269504088896341f), magic);
    const Native n = shifted - magic;
    Native r = native_fma(n, native_splat(-0.693145751953125f), bounded);
    r = native_fma(n, native_splat(-1.42860677e-6f), r);
    Native p = native_splat(1.0f / 720);
    p = native_fma(p, r, native_splat(1.0f / 120));
    p = native_fma(p, r, native_splat(1.0f / 24));
    p = native_fma(p, r, native_splat(1.0f / 6));
    p = native_fma(p, r, native_splat(0.5f));
    p = native_fma(p, r, native_splat(1.0f));
    p = native_fma(p, r, native_splat(1.0f));
    const NativeInt bits = (NativeInt)p + ((NativeInt)shifted << 23);
    x.part[i] = x.part[i] > -86.0f ? (Native)bits : native_splat(0.0f);
  }
  return x;
}

}  // namespace STREAMFUSE_ISA
}  // namespace streamfuse
