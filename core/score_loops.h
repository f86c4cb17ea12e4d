// The two loops of sampling over a whole row of scores, vectorized for this machine (sample.cpp). All versions are
// bit-identical: they perform the same operations, only more of them in parallel.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "numbers.h"

#if defined(__clang__)
#pragma clang fp contract(off)
#endif

namespace streamfuse {

constexpr int64_t kLanes = 256;  // docs/random.md

// Adds the weights of all scores to their lanes.
template <class Number>
inline __attribute__((always_inline)) void weigh(const Number* scores, int64_t count, double top, double temperature,
                                                 double* lanes) {
  for (int64_t start = 0; start < count; start += kLanes) {
    const int64_t here = std::min(kLanes, count - start);
    for (int64_t lane = 0; lane < here; ++lane)
      lanes[lane] += exponential((static_cast<double>(scores[start + lane]) - top) / temperature);
  }
}

// The largest score, and whether one is NaN.
struct Summit {
  double score;
  bool unordered;
};

template <class Number>
inline __attribute__((always_inline)) Summit find_summit(const Number* scores, int64_t count) {
  constexpr int64_t kWide = 64;  // elements in parallel
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

template <class Number>
struct Loops {
  void (*weigh)(const Number*, int64_t, double, double, double*);
  Summit (*summit)(const Number*, int64_t);
};

template <class Number>
void weigh_anywhere(const Number* scores, int64_t count, double top, double temperature, double* lanes) {
  weigh(scores, count, top, temperature, lanes);
}

template <class Number>
Summit summit_anywhere(const Number* scores, int64_t count) {
  return find_summit(scores, count);
}

#if defined(__x86_64__) && defined(__GNUC__)
#define SF_AVX512 __attribute__((target("avx512f,avx512dq,avx512vl")))
#define SF_AVX2 __attribute__((target("avx2")))

template <class Number>
SF_AVX512 void weigh_avx512(const Number* scores, int64_t count, double top, double temperature, double* lanes) {
  weigh(scores, count, top, temperature, lanes);
}

template <class Number>
SF_AVX512 Summit summit_avx512(const Number* scores, int64_t count) {
  return find_summit(scores, count);
}

template <class Number>
SF_AVX2 void weigh_avx2(const Number* scores, int64_t count, double top, double temperature, double* lanes) {
  weigh(scores, count, top, temperature, lanes);
}

template <class Number>
SF_AVX2 Summit summit_avx2(const Number* scores, int64_t count) {
  return find_summit(scores, count);
}
#endif

template <class Number>
Loops<Number> best_loops() {
#if defined(__x86_64__) && defined(__GNUC__)
  if (__builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
    return {weigh_avx512<Number>, summit_avx512<Number>};
  if (__builtin_cpu_supports("avx2")) return {weigh_avx2<Number>, summit_avx2<Number>};
#endif
  return {weigh_anywhere<Number>, summit_anywhere<Number>};
}

#undef SF_AVX512
#undef SF_AVX2

}  // namespace streamfuse
