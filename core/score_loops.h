// The loops of sampling over a whole row of scores, vectorized for this machine (sample.cpp). All versions are
// bit-identical: they perform the same operations, only more of them in parallel.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "noise.h"
#include "numbers.h"

#if defined(__clang__)
#pragma clang fp contract(off)
#endif

namespace streamfuse {

constexpr int64_t kLanes = 256;  // tests/traces/README.md

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

// Writes the largest score of each block of tokens. Returns whether a score is NaN.
template <class Number>
inline __attribute__((always_inline)) bool find_peaks(const Number* scores, int64_t count, double* peaks) {
  constexpr int64_t kWide = 64;  // elements in parallel
  int32_t odd[kWide] = {};
  for (int64_t start = 0; start < count; start += kBlock) {
    Number most[kWide];
    std::fill(most, most + kWide, -std::numeric_limits<Number>::infinity());
    const int64_t end = std::min(start + kBlock, count);
    for (int64_t at = start; at < end; at += kWide) {
      const int64_t here = std::min(kWide, end - at);
      for (int64_t lane = 0; lane < here; ++lane) {
        const Number score = scores[at + lane];
        most[lane] = score > most[lane] ? score : most[lane];
        odd[lane] |= score != score;
      }
    }
    for (int64_t half = kWide / 2; half > 0; half /= 2)
      for (int64_t lane = 0; lane < half; ++lane)
        most[lane] = most[lane + half] > most[lane] ? most[lane + half] : most[lane];
    *peaks++ = static_cast<double>(most[0]);
  }
  return std::count(odd, odd + kWide, 0) != kWide;
}

// Draws all blocks of a position.
inline __attribute__((always_inline)) void draw_blocks(const Noise& noise, int64_t count, Noise::Block* blocks) {
  for (int64_t block = 0; block < count; ++block) blocks[block] = noise.block(block);
}

template <class Number>
struct Loops {
  void (*weigh)(const Number*, int64_t, double, double, double*);
  bool (*peaks)(const Number*, int64_t, double*);
  void (*blocks)(const Noise&, int64_t, Noise::Block*);
};

template <class Number>
void weigh_anywhere(const Number* scores, int64_t count, double top, double temperature, double* lanes) {
  weigh(scores, count, top, temperature, lanes);
}

template <class Number>
bool peaks_anywhere(const Number* scores, int64_t count, double* peaks) {
  return find_peaks(scores, count, peaks);
}

inline void blocks_anywhere(const Noise& noise, int64_t count, Noise::Block* blocks) {
  draw_blocks(noise, count, blocks);
}

#if defined(__x86_64__) && defined(__GNUC__)
#define SF_AVX512 __attribute__((target("avx512f,avx512dq,avx512vl")))
#define SF_AVX2 __attribute__((target("avx2")))

template <class Number>
SF_AVX512 void weigh_avx512(const Number* scores, int64_t count, double top, double temperature, double* lanes) {
  weigh(scores, count, top, temperature, lanes);
}

template <class Number>
SF_AVX512 bool peaks_avx512(const Number* scores, int64_t count, double* peaks) {
  return find_peaks(scores, count, peaks);
}

SF_AVX512 inline void blocks_avx512(const Noise& noise, int64_t count, Noise::Block* blocks) {
  draw_blocks(noise, count, blocks);
}

template <class Number>
SF_AVX2 void weigh_avx2(const Number* scores, int64_t count, double top, double temperature, double* lanes) {
  weigh(scores, count, top, temperature, lanes);
}

template <class Number>
SF_AVX2 bool peaks_avx2(const Number* scores, int64_t count, double* peaks) {
  return find_peaks(scores, count, peaks);
}

SF_AVX2 inline void blocks_avx2(const Noise& noise, int64_t count, Noise::Block* blocks) {
  draw_blocks(noise, count, blocks);
}
#endif

template <class Number>
Loops<Number> best_loops() {
#if defined(__x86_64__) && defined(__GNUC__)
  if (__builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
    return {weigh_avx512<Number>, peaks_avx512<Number>, blocks_avx512};
  if (__builtin_cpu_supports("avx2")) return {weigh_avx2<Number>, peaks_avx2<Number>, blocks_avx2};
#endif
  return {weigh_anywhere<Number>, peaks_anywhere<Number>, blocks_anywhere};
}

#undef SF_AVX512
#undef SF_AVX2

}  // namespace streamfuse
