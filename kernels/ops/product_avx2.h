// The product on AVX2 (sixteen registers of eight lanes), with or without AVX-VNNI. Included by product_kernels.cpp.
//
// Eight registers hold weights while all rows are processed; a row's partial sums are kept in the L1 cache. A four-bit
// group is processed in two halves of 16 inputs, all 16 outputs at once, so that one broadcast of activations serves
// two products; an eight-bit group in quarters of 8 inputs, because its weights take two registers.
#pragma once

#include "groups.h"
#include "packed.h"

namespace streamfuse {
namespace STREAMFUSE_ISA {
namespace {

constexpr int kRowBlock = 8, kNibbleRowBlock = 4;
constexpr bool kPairs = false;

SF_INLINE __m256i bytes_at(const uint8_t* p) { return _mm256_loadu_si256((const __m256i*)p); }

// Four inputs of eight outputs: a register of weights, sums to which their products with four activations are added,
// and the conversion of the sums to int32. All exact.
#if defined(__AVXVNNI__)

struct Nibbles {
  __m256i w;

  SF_INLINE_MEMBER void load(__m256i nibbles) { w = nibbles; }
  SF_INLINE_MEMBER __m256i add(__m256i sum, __m256i quad) const { return _mm256_dpbusd_avx_epi32(sum, w, quad); }
  static SF_INLINE_MEMBER __m256i begin(int32_t) { return _mm256_setzero_si256(); }
  static SF_INLINE_MEMBER __m256i end(__m256i sum) { return sum; }
};

struct Bytes : Nibbles {
  static SF_INLINE_MEMBER __m256i begin(int32_t start) { return _mm256_set1_epi32(start); }
};

#else

struct Nibbles {
  __m256i w;

  SF_INLINE_MEMBER void load(__m256i nibbles) { w = nibbles; }
  // A product is at most 15 * 127, and 16 of them fit an int16.
  SF_INLINE_MEMBER __m256i add(__m256i sum, __m256i quad) const {
    return _mm256_add_epi16(sum, _mm256_maddubs_epi16(w, quad));
  }
  static SF_INLINE_MEMBER __m256i begin(int32_t) { return _mm256_setzero_si256(); }
  static SF_INLINE_MEMBER __m256i end(__m256i sum) { return _mm256_madd_epi16(sum, _mm256_set1_epi16(1)); }
};

// |w| <= 128 and |q| <= 127, so two products fit an int16. The sign is moved to the activation, since -128 has no
// negative.
struct Bytes {
  __m256i w, size;

  SF_INLINE_MEMBER void load(__m256i bytes) {
    w = _mm256_xor_si256(bytes, _mm256_set1_epi8((char)128));
    size = _mm256_abs_epi8(w);
  }
  SF_INLINE_MEMBER __m256i add(__m256i sum, __m256i quad) const {
    const __m256i pairs = _mm256_maddubs_epi16(size, _mm256_sign_epi8(quad, w));
    return _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
  }
  static SF_INLINE_MEMBER __m256i begin(int32_t) { return _mm256_setzero_si256(); }
  static SF_INLINE_MEMBER __m256i end(__m256i sum) { return sum; }
};

#endif

// sums[r] += products of N weight registers of each part and row r's activations from q on.
template <int Rows, int N, typename Weight>
SF_INLINE void add_products(const Weight (*w)[kParts], const int8_t* q, __m256i (*sums)[kParts]) {
#pragma GCC unroll 8
  for (int r = 0; r < Rows; ++r)
    for (int i = 0; i < N; ++i) {
      const __m256i quad = _mm256_set1_epi32(quad_at(q + r * kGroupSize + 4 * i));
      for (int p = 0; p < kParts; ++p) {
        sums[r][p] = w[i][p].add(sums[r][p], quad);
        __asm__("" : "+x"(sums[r][p]));  // keeps GCC from computing all products of a block first and spilling them
      }
    }
}

// A quarter of a four-bit group: inputs 4 i .. 4 i + 3 in the low nibbles, the inputs 16 later in the high ones.
template <int Rows>
SF_INLINE void add_nibbles(const uint8_t* w, const int8_t* q, int i, __m256i (*sums)[kParts]) {
  for (int high = 0; high < 2; ++high) {
    Nibbles quarter[1][kParts];
    for (int p = 0; p < kParts; ++p) {
      const __m256i bytes = bytes_at(w + 64 * i + 32 * p);
      quarter[0][p].load(_mm256_and_si256(high ? _mm256_srli_epi16(bytes, 4) : bytes, _mm256_set1_epi8(15)));
    }
    add_products<Rows, 1>(quarter, q + 16 * high + 4 * i, sums);
  }
}

template <int Rows, int Quarter>
SF_INLINE void add_bytes(const uint8_t* w, const int8_t* q, __m256i (*sums)[kParts]) {
  Bytes quarter[2][kParts];
  for (int i = 0; i < 2; ++i)
    for (int p = 0; p < kParts; ++p) quarter[i][p].load(bytes_at(w + 128 * Quarter + 64 * i + 32 * p));
  add_products<Rows, 2>(quarter, q + 8 * Quarter, sums);
}

template <bool Q8, bool IsWeight, int Rows>
void product_block(const uint8_t* w, const Rounded& x, int64_t row0, float* out, bool onto) {
  constexpr int64_t kBytes = Q8 ? kQ8TileBytes : kQ4TileBytes, kScales = Q8 ? 512 : 256;
  Native acc[Rows][kParts];
  for (int r = 0; r < Rows; ++r)
    for (int p = 0; p < kParts; ++p)
      acc[r][p] = onto ? ((const NativeUnaligned*)(out + r * kLanes))[p] : native_splat(0.0f);
  const int8_t* q = x.q + row0 * kGroupSize;
  const float *scale = x.scale + row0, *share = x.share + row0;
  const int32_t* start = x.start + row0;
  for (int64_t g = 0; g < x.groups; ++g) {
    prefetch_ahead<Q8, IsWeight>(w);
    __m256i sums[Rows][kParts];
    for (int r = 0; r < Rows; ++r)
      for (int p = 0; p < kParts; ++p) sums[r][p] = Q8 ? Bytes::begin(start[r]) : Nibbles::begin(start[r]);
    if (Q8) {
      add_bytes<Rows, 0>(w, q, sums);
      add_bytes<Rows, 1>(w, q, sums);
      add_bytes<Rows, 2>(w, q, sums);
      add_bytes<Rows, 3>(w, q, sums);
    } else {
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) add_nibbles<Rows>(w, q, i, sums);
    }
    Native d[kParts], m[kParts];
    for (int p = 0; p < kParts; ++p) {
      d[p] = halves(w + kScales + 16 * p);
      m[p] = Q8 ? d[p] : halves(w + kScales + 32 + 16 * p);
    }
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r)
      for (int p = 0; p < kParts; ++p) {
        const __m256i sum = Q8 ? Bytes::end(sums[r][p]) : Nibbles::end(sums[r][p]);
        acc[r][p] = native_fma(_mm256_cvtepi32_ps(sum), d[p] * native_splat(scale[r]), acc[r][p]);
        if (!Q8) acc[r][p] = native_fma(m[p], native_splat(share[r]), acc[r][p]);
      }
    w += kBytes;
    q += x.rows * kGroupSize;
    scale += x.rows;
    share += x.rows;
    start += x.rows;
  }
  for (int r = 0; r < Rows; ++r)
    for (int p = 0; p < kParts; ++p) ((NativeUnaligned*)(out + r * kLanes))[p] = acc[r][p];
}

}  // namespace
}  // namespace STREAMFUSE_ISA
}  // namespace streamfuse
