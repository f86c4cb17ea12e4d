// Every operation of core and kernels is rounded separately (tests/traces/README.md, kernels/ops/lanes.h). A compiler
// that contracts a * b + c to a fused multiply-add changes results, and most do if the processor has it. Every source
// file includes this header first, so that no build depends on a flag. Intended fused operations are written
// explicitly.
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

// In Clang -ffp-contract=fast overrides the pragma above, and no macro shows it: a library calls this once before it
// computes.
static inline bool fuses_products() {
  const volatile float x = 1.0f + 0x1p-12f, minus_square = -(1.0f + 0x1p-11f);  // rounded; an FMA keeps 2^-24
  const float factor = x;
  return factor * factor + minus_square != 0.0f;
}

constexpr const char* kFusesProducts =
    "this build of streamfuse fuses products with sums, which changes results: build it without -ffp-contract=fast";

}  // namespace streamfuse
