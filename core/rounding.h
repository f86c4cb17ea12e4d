// Every operation of core and kernels rounds by itself (docs/random.md, kernels/ops/lanes.h): a compiler that makes one
// fused step of a * b + c changes results, and most do so where the processor can. So this header is the first one of
// every source file, and no build can lose what a flag would say. Fused steps that are meant are written as such.
#pragma once

#if defined(__FAST_MATH__) || defined(__ASSOCIATIVE_MATH__) || defined(__RECIPROCAL_MATH__)
#error "streamfuse computes with exact rounding: build it without -ffast-math and without -Ofast"
#endif
#if defined(__FLT_EVAL_METHOD__) && (__FLT_EVAL_METHOD__ == 1 || __FLT_EVAL_METHOD__ == 2)
#error "streamfuse computes with exact rounding: build it for arithmetic that is not wider than its types (-msse2)"
#endif

#if defined(__clang__)
#pragma clang fp contract(off)
#elif defined(__GNUC__)
#pragma GCC optimize("fp-contract=off")
#else
#error "say here how this compiler is kept from fusing a * b + c"
#endif

namespace streamfuse {

// Clang lets -ffp-contract=fast overrule what is said above, and no macro tells: a library asks once before it
// computes.
static inline bool fuses_products() {
  const volatile float x = 1.0f + 0x1p-12f, minus_square = -(1.0f + 0x1p-11f);  // rounded; a fused step keeps 2^-24
  const float factor = x;
  return factor * factor + minus_square != 0.0f;
}

constexpr const char* kFusesProducts =
    "this build of streamfuse fuses products with sums, which changes results: build it without -ffp-contract=fast";

}  // namespace streamfuse
