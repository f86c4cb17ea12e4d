// The noise that sampling adds to the score of a token: a standard Gumbel variable that depends on seed, position and
// token only (tests/traces/README.md).
//
// Gumbel noise is -ln(t) for the time t of the first event of a Poisson process of rate 1. The first event among the n
// tokens of a block has an exponentially distributed time with mean 1 / n, and each of them is its token with the same
// probability; the time from there to the first event of another token is exponentially distributed again. So the
// largest noise of a block is known without the other ones (the top-down construction of Maddison, Tarlow and Minka,
// "A* sampling", 2014), and only tokens that can win need theirs.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "numbers.h"

#if defined(__clang__)
#pragma clang fp contract(off)
#endif

namespace streamfuse {

constexpr int64_t kBlock = 256;  // tokens per block

inline int64_t blocks_of(int64_t vocab_size) { return (vocab_size + kBlock - 1) / kBlock; }

// What a random number is for: the third word of its counter. Smaller ones are those of streamfuse.research.
enum class Use : uint32_t { kBlock = 4, kToken = 5 };

// Four random words: Philox4x32-10 (Salmon et al., SC 2011), key: seed, counter: position, use, index.
inline __attribute__((always_inline)) std::array<uint32_t, 4> random_words(uint64_t seed, uint64_t position, Use use,
                                                                           uint32_t index) {
  uint32_t c0 = static_cast<uint32_t>(position), c1 = static_cast<uint32_t>(position >> 32);
  uint32_t c2 = static_cast<uint32_t>(use), c3 = index;
  uint32_t k0 = static_cast<uint32_t>(seed), k1 = static_cast<uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53u} * c0, b = uint64_t{0xCD9E8D57u} * c2;
    c0 = static_cast<uint32_t>(b >> 32) ^ c1 ^ k0;
    c2 = static_cast<uint32_t>(a >> 32) ^ c3 ^ k1;
    c1 = static_cast<uint32_t>(b);
    c3 = static_cast<uint32_t>(a);
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return {c0, c1, c2, c3};
}

// -ln(u) for u an odd multiple of 2^-53 in (0, 1): exponentially distributed, with mean 1.
inline __attribute__((always_inline)) double waiting_time(uint32_t first, uint32_t second) {
  const double steps = static_cast<double>(first >> 6) * 67108864.0 + static_cast<double>(second >> 6);
  return -logarithm((steps + 0.5) * 0x1p-52);
}

// The noise at one position.
class Noise {
 public:
  struct Block {
    double time, largest;  // of the first event, and the noise that it is
    int64_t token;         // whose noise that is
  };

  Noise(uint64_t seed, int64_t position, int64_t vocab_size)
      : seed_(seed), position_(static_cast<uint64_t>(position)), vocab_size_(vocab_size) {}

  inline __attribute__((always_inline)) Block block(int64_t index) const {
    const int64_t size = std::min(kBlock, vocab_size_ - index * kBlock);
    const auto words = random_words(seed_, position_, Use::kBlock, static_cast<uint32_t>(index));
    const double time = waiting_time(words[0], words[1]) / static_cast<double>(size);
    return {time, -logarithm(time),
            index * kBlock + static_cast<int64_t>(words[2] * static_cast<uint64_t>(size) >> 32)};
  }
  // Of a token of this block; at most the block's largest.
  double of(int64_t token, const Block& block) const {
    if (token == block.token) return block.largest;
    const auto words = random_words(seed_, position_, Use::kToken, static_cast<uint32_t>(token));
    return std::min(-logarithm(block.time + waiting_time(words[0], words[1])), block.largest);
  }
  double of(int64_t token) const { return of(token, block(token / kBlock)); }

 private:
  uint64_t seed_, position_;
  int64_t vocab_size_;
};

}  // namespace streamfuse
