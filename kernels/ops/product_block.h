// A tile's product with a block of rows, if its group of weights fits into registers (groups.h) or needs none.
// Included by product_kernels.cpp.
#pragma once

#include "groups.h"

namespace streamfuse {
namespace STREAMFUSE_ISA {
namespace {

// Rows per unpacking of the weights, as many as fit into registers; results do not depend on it.
#if defined(__AVX512F__)
constexpr int kRowBlock = 12;
#elif defined(__aarch64__)
constexpr int kRowBlock = 8;
#else
constexpr int kRowBlock = 4;
#endif
constexpr int kNibbleRowBlock = kRowBlock;
constexpr int kPartLanes = kLanes / kParts;

#if defined(__ARM_FEATURE_MATMUL_INT8)
constexpr bool kPairs = true;
#else
constexpr bool kPairs = false;
#endif
// Rows whose integer sums are interleaved, because the additions of a single row depend on each other.
#if defined(__AVX512F__)
constexpr int kTogether = 4;
#else
constexpr int kTogether = kPairs ? 2 : 1;
#endif

template <bool Q8, bool InPairs>
struct RowDots {
  Group<Q8> group;

  SF_INLINE_MEMBER void load(const uint8_t* w, int part) { group.load(w, part); }
  // A group's dot products with N rows starting at q.
  template <int N>
  SF_INLINE_MEMBER void take(const int8_t* q, const int32_t* start, Native* out) const {
#if defined(__AVX512F__)
    group.template dots_of<N>(q, start, out);
#else
    for (int i = 0; i < N; ++i) out[i] = group.dots(q + i * kGroupSize, start[i]);
#endif
  }
};

#if defined(__ARM_FEATURE_MATMUL_INT8)
template <bool Q8>
struct RowDots<Q8, true> {
  PairGroup<Q8> group;

  SF_INLINE_MEMBER void load(const uint8_t* w, int part) { group.load(w, part); }
  template <int N>
  SF_INLINE_MEMBER void take(const int8_t* q, const int32_t*, Native* out) const {
    Native unused;
    group.dots(q, N == 1, &out[0], N == 1 ? &unused : &out[N - 1]);
  }
};
#endif

// Adds this group's contribution to acc[r], starting with row First.
template <bool Q8, int Rows, int First, typename Dots>
SF_INLINE void add_group(const Dots& dots, Native d, Native m, const int8_t* q, const float* scale, const float* share,
                         const int32_t* start, Native* acc) {
  constexpr int n = Rows - First < kTogether ? Rows - First : kTogether;
  Native sums[n];
  dots.template take<n>(q + First * kGroupSize, start + First, sums);
  for (int i = 0; i < n; ++i) {
    const int r = First + i;
    acc[r] = native_fma(sums[i], d * native_splat(scale[r]), acc[r]);
    if (!Q8) acc[r] = native_fma(m, native_splat(share[r]), acc[r]);
  }
  if constexpr (First + n < Rows) add_group<Q8, Rows, First + n>(dots, d, m, q, scale, share, start, acc);
}

template <bool Q8, bool IsWeight, int Rows>
void product_block(const uint8_t* tile, const Rounded& x, int64_t row0, float* out, bool onto) {
  constexpr int64_t kBytes = Q8 ? kQ8TileBytes : kQ4TileBytes, kScales = Q8 ? 512 : 256;
  for (int part = 0; part < kParts; ++part) {
    Native acc[Rows];
    for (int r = 0; r < Rows; ++r)
      acc[r] = onto ? *(const NativeUnaligned*)(out + r * kLanes + part * kPartLanes) : native_splat(0.0f);
    const uint8_t* w = tile;
    const int8_t* q = x.q + row0 * kGroupSize;
    const float *scale = x.scale + row0, *share = x.share + row0;
    const int32_t* start = x.start + row0;
    for (int64_t g = 0; g < x.groups; ++g) {
      if (part == 0) prefetch_ahead<Q8, IsWeight>(w);
      RowDots<Q8, kPairs && (Rows > 1)> dots;
      dots.load(w, part);
      const Native d = halves(w + kScales + 2 * kPartLanes * part);
      const Native m = Q8 ? d : halves(w + kScales + 32 + 2 * kPartLanes * part);
      add_group<Q8, Rows, 0>(dots, d, m, q, scale, share, start, acc);
      w += kBytes;
      q += x.rows * kGroupSize;
      scale += x.rows;
      share += x.rows;
      start += x.rows;
    }
    for (int r = 0; r < Rows; ++r) *(NativeUnaligned*)(out + r * kLanes + part * kPartLanes) = acc[r];
  }
}

}  // namespace
}  // namespace STREAMFUSE_ISA
}  // namespace streamfuse
