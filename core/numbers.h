// Functions that are bit-identical in every language (tests/traces/README.md): exponential, logarithm, half floats. In
// double precision, every operation rounded separately (rounding.h).
#pragma once

#include <bit>
#include <cstdint>

#if defined(__clang__)
#pragma clang fp contract(off)
#endif

namespace streamfuse {

// e^x within two units of the last place; 0 below -700. 2^k by adding to the exponent, and the Taylor series of
// the remainder, at most ln(2) / 2. Without branches, so that compilers vectorize it. x is at most 700.
inline __attribute__((always_inline)) double exponential(double given) {
  constexpr double kShift = 0x1.8p52;  // its last bit is worth 1, so a sum with it is rounded to an integer
  const double x = given < -700.0 ? -700.0 : given;
  const double shifted = x * 1.4426950408889634 + kShift, k = shifted - kShift;
  const double r = (x - k * 6.93147180369123816490e-01) - k * 1.90821492927058770002e-10;
  double sum = 1.0 / 6227020800;
  sum = sum * r + 1.0 / 479001600;
  sum = sum * r + 1.0 / 39916800;
  sum = sum * r + 1.0 / 3628800;
  sum = sum * r + 1.0 / 362880;
  sum = sum * r + 1.0 / 40320;
  sum = sum * r + 1.0 / 5040;
  sum = sum * r + 1.0 / 720;
  sum = sum * r + 1.0 / 120;
  sum = sum * r + 1.0 / 24;
  sum = sum * r + 1.0 / 6;
  sum = sum * r + 0.5;
  sum = sum * r + 1.0;
  sum = sum * r + 1.0;
  const double found = std::bit_cast<double>(std::bit_cast<uint64_t>(sum) + (std::bit_cast<uint64_t>(shifted) << 52));
  return given < -700.0 ? 0.0 : found;
}

// ln(x) for normal x > 0, within three units of the last place: x = m 2^e with m between sqrt(1/2) and sqrt(2), and
// ln(m) = 2 artanh((m - 1) / (m + 1)) as a series.
inline __attribute__((always_inline)) double logarithm(double x) {
  const uint64_t bits = std::bit_cast<uint64_t>(x);
  double e = static_cast<double>(static_cast<int64_t>(bits >> 52 & 0x7ff) - 1023);
  double m = std::bit_cast<double>((bits & 0x000fffffffffffffu) | 0x3ff0000000000000u);
  if (m > 1.4142135623730951) {
    m *= 0.5;
    e += 1.0;
  }
  const double f = (m - 1.0) / (m + 1.0), s = f * f;
  double sum = 1.0 / 21;
  sum = sum * s + 1.0 / 19;
  sum = sum * s + 1.0 / 17;
  sum = sum * s + 1.0 / 15;
  sum = sum * s + 1.0 / 13;
  sum = sum * s + 1.0 / 11;
  sum = sum * s + 1.0 / 9;
  sum = sum * s + 1.0 / 7;
  sum = sum * s + 1.0 / 5;
  sum = sum * s + 1.0 / 3;
  sum = sum * s + 1.0;
  return e * 6.93147180369123816490e-01 + (2.0 * f * sum + e * 1.90821492927058770002e-10);
}

// The value of a float16, from its bits.
inline float from_half(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
  const uint32_t exponent = (bits >> 10) & 31u, fraction = bits & 1023u;
  if (exponent == 0) {  // zero and subnormal: a multiple of 2^-24
    const float value = static_cast<float>(fraction) * 5.9604644775390625e-8f;
    return sign ? -value : value;
  }
  return std::bit_cast<float>(sign | (exponent == 31 ? 0x7f800000u : (exponent + 112) << 23) | (fraction << 13));
}

}  // namespace streamfuse
