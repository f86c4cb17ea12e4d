// The two loops over a whole row of scores that sampling needs, as this machine does them best (sample.cpp).
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>

namespace streamfuse {

constexpr int64_t kLanes = 256;  // docs/random.md

// e^x for x <= 0, within a few units of the last place; below -700 as at -700. Written for a compiler that makes
// vectors of it: 2^k by adding to the exponent, and the Taylor series of the rest, which is at most ln(2) / 2.
template <bool kFused>
inline __attribute__((always_inline)) double exponential(double x) {
  const auto fma = [](double a, double b, double c) __attribute__((always_inline)) {
    if constexpr (kFused) return __builtin_fma(a, b, c);
    return a * b + c;
  };
  constexpr double kShift = 0x1.8p52;  // its last bit is worth 1, so a sum with it is rounded to an integer
  x = x < -700.0 ? -700.0 : x;
  const double shifted = fma(x, 1.4426950408889634, kShift), k = shifted - kShift;
  const double r = fma(k, -1.9082149292705877e-10, fma(k, -0.69314718036912382, x));
  double sum = fma(1.0 / 6227020800, r, 1.0 / 479001600);
  sum = fma(sum, r, 1.0 / 39916800);
  sum = fma(sum, r, 1.0 / 3628800);
  sum = fma(sum, r, 1.0 / 362880);
  sum = fma(sum, r, 1.0 / 40320);
  sum = fma(sum, r, 1.0 / 5040);
  sum = fma(sum, r, 1.0 / 720);
  sum = fma(sum, r, 1.0 / 120);
  sum = fma(sum, r, 1.0 / 24);
  sum = fma(sum, r, 1.0 / 6);
  sum = fma(sum, r, 0.5);
  sum = fma(sum, r, 1.0);
  sum = fma(sum, r, 1.0);
  return std::bit_cast<double>(std::bit_cast<uint64_t>(sum) + (std::bit_cast<uint64_t>(shifted) << 52));
}

// Adds the weights of all scores to their lanes.
template <bool kFused, class Number>
inline __attribute__((always_inline)) void weigh(const Number* scores, int64_t count, double top, double temperature,
                                                 double* lanes) {
  for (int64_t start = 0; start < count; start += kLanes) {
    const int64_t here = std::min(kLanes, count - start);
    for (int64_t lane = 0; lane < here; ++lane) {
      lanes[lane] += exponential<kFused>((static_cast<double>(scores[start + lane]) - top) / temperature);
    }
  }
}

// The largest score, and whether one is not a number.
struct Summit {
  double score;
  bool unordered;
};

template <class Number>
inline __attribute__((always_inline)) Summit find_summit(const Number* scores, int64_t count) {
  constexpr int64_t kWide = 64;  // side by side, as vectors
  Number most[kWide];
  int32_t odd[kWide] = {};
  std::fill(most, most + kWide, -std::numeric_limits<Number>::infinity());
  for (int64_t start = 0; start < count; start += kWide) {
    const int64_t here = std::min(kWide, count - start);
    for (int64_t lane = 0; lane < here; ++lane) {
      const Number score = scores[start + lane];
      most[lane] = score > most[lane] ? score : most[lane];
      odd[lane] |= score != score;
    }
  }
  return {static_cast<double>(*std::max_element(most, most + kWide)), std::count(odd, odd + kWide, 0) != kWide};
}

// The two loops over a whole vocabulary, as this machine does them best.
template <class Number>
struct Loops {
  void (*weigh)(const Number*, int64_t, double, double, double*);
  Summit (*summit)(const Number*, int64_t);
};

#if defined(__aarch64__)
constexpr bool kFusedAnywhere = true;
#else
constexpr bool kFusedAnywhere = false;
#endif

template <class Number>
void weigh_anywhere(const Number* scores, int64_t count, double top, double temperature, double* lanes) {
  weigh<kFusedAnywhere>(scores, count, top, temperature, lanes);
}

template <class Number>
Summit summit_anywhere(const Number* scores, int64_t count) {
  return find_summit(scores, count);
}

#if defined(__x86_64__) && defined(__GNUC__)
#define SF_AVX512 __attribute__((target("avx512f,avx512dq,avx512vl,fma")))
#define SF_AVX2 __attribute__((target("avx2,fma")))

template <class Number>
SF_AVX512 void weigh_avx512(const Number* scores, int64_t count, double top, double temperature, double* lanes) {
  weigh<true>(scores, count, top, temperature, lanes);
}

template <class Number>
SF_AVX512 Summit summit_avx512(const Number* scores, int64_t count) {
  return find_summit(scores, count);
}

template <class Number>
SF_AVX2 void weigh_avx2(const Number* scores, int64_t count, double top, double temperature, double* lanes) {
  weigh<true>(scores, count, top, temperature, lanes);
}

template <class Number>
SF_AVX2 Summit summit_avx2(const Number* scores, int64_t count) {
  return find_summit(scores, count);
}
#endif

template <class Number>
Loops<Number> best_loops() {
#if defined(__x86_64__) && defined(__GNUC__)
  if (__builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
    return {weigh_avx512<Number>, summit_avx512<Number>};
  }
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return {weigh_avx2<Number>, summit_avx2<Number>};
#endif
  return {weigh_anywhere<Number>, summit_anywhere<Number>};
}

#undef SF_AVX512
#undef SF_AVX2

}  // namespace streamfuse
