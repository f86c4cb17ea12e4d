// Attention of a few rows over the keys and values of one kv head. Included by lane_kernels.cpp.
//
// Blocking changes speed and never a result: each score has its own accumulator, each output adds its positions in
// order.
#pragma once

#include "lane_kernels.h"
#include "lanes.h"

namespace streamfuse {
namespace STREAMFUSE_ISA {
namespace {

#if defined(__AVX512F__)
constexpr int kQueryBlock = 4, kKeyBlock = 4, kValueBlock = 4;
#elif defined(__AVX2__)
constexpr int kQueryBlock = 3, kKeyBlock = 2, kValueBlock = 2;
#else
constexpr int kQueryBlock = 4, kKeyBlock = 1, kValueBlock = 1;
#endif
constexpr int64_t kValueChunk =
    64;  // positions that all rows of a block take while their values are in the first cache
constexpr int64_t kKeysAhead =
    32;  // of the scores, asked from memory: a head's rows lie apart, no processor guesses them

// Rows of keys or values: `n_cached` cached rows, `stride` floats apart, then the listed new rows.
struct Sequence {
  const float* cached;
  const float* fresh;
  const int32_t* fresh_rows;
  int64_t n_cached;
  int64_t length;
  int64_t stride;

  SF_INLINE_MEMBER const float* at(int64_t t) const {
    return t < n_cached ? cached + t * stride : fresh + fresh_rows[t - n_cached] * stride;
  }
};

SF_INLINE void prefetch_row(const float* row, int64_t dim) {
  for (int64_t d = 0; d < dim; d += kLanes) __builtin_prefetch(row + d, 0, 2);
}

// scores[q * line + t] = scale * dot(query q, key t)
template <int Queries, int Keys>
SF_INLINE void score_block(const float* query, int64_t padded, int64_t dim, const float* const* keys, float scale,
                           float* scores, int64_t line) {
  Lanes acc[Keys][kQueryBlock];
  for (int t = 0; t < Keys; ++t)
    for (int q = 0; q < kQueryBlock; ++q) acc[t][q] = splat(0.0f);
  const int64_t whole = dim / kLanes * kLanes;
  for (int64_t d = 0; d < whole; d += kLanes) {
    Lanes own[Queries];
    for (int q = 0; q < Queries; ++q) own[q] = load(query + q * padded + d);
    for (int t = 0; t < Keys; ++t) {
      const Lanes k = load(keys[t] + d);
      for (int q = 0; q < Queries; ++q) acc[t][q] = fma(own[q], k, acc[t][q]);
    }
  }
  if (whole < dim) {
    for (int t = 0; t < Keys; ++t) {
      const Lanes k = load_first(keys[t] + whole, (int)(dim - whole));
      for (int q = 0; q < Queries; ++q) acc[t][q] = fma(load(query + q * padded + whole), k, acc[t][q]);
    }
  }
#if defined(__AVX512F__)
  if (Keys == 4) {
    float sums[kQueryBlock * 4];
    __m512 all[kQueryBlock * 4];
    for (int i = 0; i < kQueryBlock * 4; ++i) all[i] = acc[i / kQueryBlock][i % kQueryBlock].part[0];
    const auto plus = [](__m512 x, __m512 y) { return _mm512_add_ps(x, y); };
    _mm512_storeu_ps(sums, _mm512_mul_ps(fold_16(all, plus), _mm512_set1_ps(scale)));
    for (int q = 0; q < Queries; ++q) memcpy(scores + q * line, sums + 4 * q, 4 * sizeof(float));
    return;
  }
#elif defined(__AVX2__)
  if (Keys == 2) {
    float sums[8];
    __m256 all[8] = {};
    for (int q = 0; q < Queries; ++q)
      for (int t = 0; t < 2; ++t) all[2 * q + t] = _mm256_add_ps(acc[t][q].part[0], acc[t][q].part[1]);
    _mm256_storeu_ps(sums, _mm256_mul_ps(fold_8(all), _mm256_set1_ps(scale)));
    for (int q = 0; q < Queries; ++q) scores[q * line] = sums[q], scores[q * line + 1] = sums[4 + q];
    return;
  }
#endif
  for (int q = 0; q < Queries; ++q)
    for (int t = 0; t < Keys; ++t) scores[q * line + t] = sum(acc[t][q]) * scale;
}

template <int Keys>
SF_INLINE void score_keys(const float* query, int64_t queries, int64_t padded, int64_t dim, const float* const* keys,
                          float scale, float* scores, int64_t line) {
  constexpr int n = kQueryBlock;
  for (; queries >= n; queries -= n, query += n * padded, scores += n * line)
    score_block<n, Keys>(query, padded, dim, keys, scale, scores, line);
  if (n > 3 && queries == 3) score_block<3, Keys>(query, padded, dim, keys, scale, scores, line);
  if (queries == 2) score_block<2, Keys>(query, padded, dim, keys, scale, scores, line);
  if (queries == 1) score_block<1, Keys>(query, padded, dim, keys, scale, scores, line);
}

// Keys [begin, end) of the sequence; what follows them, and their values, is asked from memory where it is cached.
void score(const float* query, int64_t queries, int64_t padded, int64_t dim, const Sequence& keys, int64_t begin,
           int64_t end, const float* cached_values, float scale, float* scores, int64_t line) {
  int64_t t = begin;
  for (; t < end; t += kKeyBlock) {
    const float* rows[kKeyBlock];
    const int64_t n = end - t < kKeyBlock ? end - t : kKeyBlock;
    for (int64_t i = 0; i < n; ++i) {
      rows[i] = keys.at(t + i);
      if (t + i + kKeysAhead < keys.n_cached) prefetch_row(keys.cached + (t + i + kKeysAhead) * keys.stride, dim);
      if (t + i < keys.n_cached) prefetch_row(cached_values + (t + i) * keys.stride, dim);
    }
    if (n == kKeyBlock)
      score_keys<kKeyBlock>(query, queries, padded, dim, rows, scale, scores + t, line);
    else
      for (int64_t i = 0; i < n; ++i) score_keys<1>(query, queries, padded, dim, rows + i, scale, scores + t + i, line);
  }
}

// Turns a line of scores into weights in place and returns their total. The line is padded to whole lanes.
float weigh(float* scores, int64_t length) {
  const int64_t whole = length / kLanes * kLanes, padded = (length + kLanes - 1) / kLanes * kLanes;
  Lanes top = splat(scores[0]);
  for (int64_t t = 0; t < whole; t += kLanes) top = max(top, load(scores + t));
  float best = largest(top);
  for (int64_t t = whole; t < length; ++t) best = SF_GREATER(scores[t], best);
  for (int64_t t = length; t < padded; ++t) scores[t] = -__builtin_inff();  // weight 0
  const Lanes shift = splat(-best);
  Lanes total = splat(0.0f);
  for (int64_t t = 0; t < padded; t += kLanes) {
    const Lanes weight = exp_of_nonpositive(add(load(scores + t), shift));
    store(scores + t, weight);
    total = add(total, weight);
  }
  return sum(total);
}

// sums[h] += weight * value over positions [begin, end), `Blocks` lanes of the head dimension from d on.
template <int Heads, int Blocks>
SF_INLINE void mix_block(const Sequence& values, int64_t begin, int64_t end, const float* weights, int64_t line,
                         int64_t d, int last, float* sums, int64_t padded) {
  Lanes acc[Heads][Blocks];
  for (int h = 0; h < Heads; ++h)
    for (int b = 0; b < Blocks; ++b) acc[h][b] = load(sums + h * padded + d + b * kLanes);
  for (int64_t t = begin; t < end; ++t) {
    const float* row = values.at(t) + d;
    Lanes v[Blocks];
    for (int b = 0; b < Blocks; ++b)
      v[b] = b + 1 == Blocks && last < kLanes ? load_first(row + b * kLanes, last) : load(row + b * kLanes);
    for (int h = 0; h < Heads; ++h) {
      const Lanes weight = splat(weights[h * line + t]);
      for (int b = 0; b < Blocks; ++b) acc[h][b] = fma(weight, v[b], acc[h][b]);
    }
  }
  for (int h = 0; h < Heads; ++h)
    for (int b = 0; b < Blocks; ++b) store(sums + h * padded + d + b * kLanes, acc[h][b]);
}

template <int Heads>
SF_INLINE void mix_heads(const Sequence& values, int64_t begin, int64_t end, const float* weights, int64_t line,
                         float* sums, int64_t padded, int64_t dim) {
  int64_t d = 0;
  for (; d + kValueBlock * kLanes <= dim; d += kValueBlock * kLanes)
    mix_block<Heads, kValueBlock>(values, begin, end, weights, line, d, kLanes, sums, padded);
  for (; d < dim; d += kLanes) {
    const int64_t left = dim - d;
    mix_block<Heads, 1>(values, begin, end, weights, line, d, left < kLanes ? (int)left : kLanes, sums, padded);
  }
}

void mix(const Sequence& values, int64_t begin, int64_t end, int64_t heads, const float* weights, int64_t line,
         float* sums, int64_t padded, int64_t dim) {
  constexpr int n = kQueryBlock;
  for (; heads >= n; heads -= n, weights += n * line, sums += n * padded)
    mix_heads<n>(values, begin, end, weights, line, sums, padded, dim);
  if (n > 3 && heads == 3) mix_heads<3>(values, begin, end, weights, line, sums, padded, dim);
  if (heads == 2) mix_heads<2>(values, begin, end, weights, line, sums, padded, dim);
  if (heads == 1) mix_heads<1>(values, begin, end, weights, line, sums, padded, dim);
}

void attend(const TreeAttention& a, const AttentionTask& task, float* scratch) {
  const int64_t dim = a.head_dim, group = a.query_heads / a.kv_heads, stride = a.kv_heads * dim;
  const int64_t padded = (dim + kLanes - 1) / kLanes * kLanes, line = attention_line(a.cache_length + a.rows);
  const int64_t queries = task.rows * group, offset = task.kv_head * dim;
  float* const sums = scratch;  // first the queries, and when there are weights, what they add up to
  float* const scores = scratch + queries * padded;
  const auto head = [&](int64_t row, int64_t h) {
    return ((task.first_row + row) * a.query_heads + task.kv_head * group + h) * dim;
  };
  const auto sequence = [&](const float* cache, const float* fresh, int64_t row) {
    const int64_t start = task.starts[row], seen = task.starts[row + 1] - start;
    return Sequence{cache + offset, fresh + offset,        task.visible_rows + start,
                    a.cache_length, a.cache_length + seen, stride};
  };

  memset(sums, 0, (size_t)(queries * padded) * sizeof(float));
  for (int64_t q = 0; q < queries; ++q)
    memcpy(sums + q * padded, a.query + head(q / group, q % group), (size_t)dim * sizeof(float));
  score(sums, queries, padded, dim, sequence(a.key_cache, a.key, 0), 0, a.cache_length, a.value_cache + offset, a.scale,
        scores, line);
  for (int64_t r = 0; r < task.rows; ++r) {
    const Sequence keys = sequence(a.key_cache, a.key, r);
    score(sums + r * group * padded, group, padded, dim, keys, a.cache_length, keys.length, nullptr, a.scale,
          scores + r * group * line, line);
  }

  memset(sums, 0, (size_t)(queries * padded) * sizeof(float));
  float* const totals = scores + queries * line;
  for (int64_t q = 0; q < queries; ++q) {
    const int64_t length = sequence(a.key_cache, a.key, q / group).length;
    totals[q] = length == 0 ? 1.0f : weigh(scores + q * line, length);
  }
  for (int64_t begin = 0;; begin += kValueChunk) {
    bool more = false;
    for (int64_t r = 0; r < task.rows; ++r) {
      const Sequence values = sequence(a.value_cache, a.value, r);
      const int64_t end = begin + kValueChunk < values.length ? begin + kValueChunk : values.length;
      if (begin < end)
        mix(values, begin, end, group, scores + r * group * line, line, sums + r * group * padded, padded, dim);
      more = more || end < values.length;
    }
    if (!more) break;
  }
  for (int64_t q = 0; q < queries; ++q) {
    float* const out = a.out + head(q / group, q % group);
    for (int64_t d = 0; d < dim; d += kLanes) {
      const Lanes mean = div(load(sums + q * padded + d), splat(totals[q]));
      if (dim - d < kLanes)
        store_first(out + d, mean, (int)(dim - d));
      else
        store(out + d, mean);
    }
  }
}

}  // namespace
}  // namespace STREAMFUSE_ISA
}  // namespace streamfuse
