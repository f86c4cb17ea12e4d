// The arithmetic of the operators over Lanes. Compiled once per instruction set; see lanes.h for what may be used here.
#include "lane_kernels.h"

#include "lanes.h"

namespace streamfuse {
namespace STREAMFUSE_ISA {
namespace {

// Register blocking; it changes speed and never a result, because each sum has its own accumulator and its own order.
#if defined(__AVX512F__)
constexpr int kKeyBlock = 4, kValueBlock = 4;
#elif defined(__AVX2__)
constexpr int kKeyBlock = 2, kValueBlock = 1;
#else
constexpr int kKeyBlock = 1, kValueBlock = 1;
#endif

// Rows of keys or values: `count` cached rows, `stride` floats apart, then the listed new rows.
struct Sequence {
  const float* cached;
  const float* fresh;
  const int32_t* fresh_rows;
  int64_t n_cached;
  int64_t length;
  int64_t stride;

  inline __attribute__((always_inline)) const float* at(int64_t t) const {
    return t < n_cached ? cached + t * stride : fresh + fresh_rows[t - n_cached] * stride;
  }
};

template <int Heads, int Keys>
SF_INLINE void score_block(const float* query, int64_t padded, int64_t dim, const float* const* keys, float scale,
                           float* scores, int64_t line) {
  Lanes acc[Keys][Heads];
  for (int t = 0; t < Keys; ++t)
    for (int h = 0; h < Heads; ++h) acc[t][h] = splat(0.0f);
  const int64_t whole = dim / kLanes * kLanes;
  for (int64_t d = 0; d < whole; d += kLanes) {
    Lanes q[Heads];
    for (int h = 0; h < Heads; ++h) q[h] = load(query + h * padded + d);
    for (int t = 0; t < Keys; ++t) {
      const Lanes k = load(keys[t] + d);
      for (int h = 0; h < Heads; ++h) acc[t][h] = fma(q[h], k, acc[t][h]);
    }
  }
  if (whole < dim) {
    for (int t = 0; t < Keys; ++t) {
      const Lanes k = load_first(keys[t] + whole, (int)(dim - whole));
      for (int h = 0; h < Heads; ++h) acc[t][h] = fma(load(query + h * padded + whole), k, acc[t][h]);
    }
  }
  for (int h = 0; h < Heads; ++h)
    for (int t = 0; t < Keys; ++t) scores[h * line + t] = sum(acc[t][h]) * scale;
}

template <int Heads>
void score(const float* query, int64_t padded, int64_t dim, const Sequence& keys, float scale, float* scores,
           int64_t line) {
  int64_t t = 0;
  for (; t + kKeyBlock <= keys.length; t += kKeyBlock) {
    const float* rows[kKeyBlock];
    for (int i = 0; i < kKeyBlock; ++i) rows[i] = keys.at(t + i);
    score_block<Heads, kKeyBlock>(query, padded, dim, rows, scale, scores + t, line);
  }
  for (; t < keys.length; ++t) {
    const float* row = keys.at(t);
    score_block<Heads, 1>(query, padded, dim, &row, scale, scores + t, line);
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

template <int Heads, int Blocks>
SF_INLINE void mix_block(const Sequence& values, const float* weights, int64_t line, const float* totals, int64_t d,
                         int last, float* out, int64_t dim) {
  Lanes acc[Heads][Blocks];
  for (int h = 0; h < Heads; ++h)
    for (int b = 0; b < Blocks; ++b) acc[h][b] = splat(0.0f);
  for (int64_t t = 0; t < values.length; ++t) {
    const float* row = values.at(t) + d;
    Lanes v[Blocks];
    for (int b = 0; b < Blocks; ++b)
      v[b] = b + 1 == Blocks && last < kLanes ? load_first(row + b * kLanes, last) : load(row + b * kLanes);
    for (int h = 0; h < Heads; ++h) {
      const Lanes weight = splat(weights[h * line + t]);
      for (int b = 0; b < Blocks; ++b) acc[h][b] = fma(weight, v[b], acc[h][b]);
    }
  }
  for (int h = 0; h < Heads; ++h) {
    const Lanes total = splat(totals[h]);
    for (int b = 0; b < Blocks; ++b) {
      const Lanes mean = div(acc[h][b], total);
      float* target = out + h * dim + d + b * kLanes;
      if (b + 1 == Blocks && last < kLanes)
        store_first(target, mean, last);
      else
        store(target, mean);
    }
  }
}

template <int Heads>
void mix(const Sequence& values, const float* weights, int64_t line, const float* totals, float* out, int64_t dim) {
  int64_t d = 0;
  for (; d + kValueBlock * kLanes <= dim; d += kValueBlock * kLanes)
    mix_block<Heads, kValueBlock>(values, weights, line, totals, d, kLanes, out, dim);
  for (; d < dim; d += kLanes) {
    const int64_t left = dim - d;
    mix_block<Heads, 1>(values, weights, line, totals, d, left < kLanes ? (int)left : kLanes, out, dim);
  }
}

template <int Heads>
void attend_heads(const float* query, const Sequence& keys, const Sequence& values, int64_t dim, float scale,
                  float* out, float* scratch) {
  const int64_t padded = (dim + kLanes - 1) / kLanes * kLanes, line = (keys.length + kLanes - 1) / kLanes * kLanes;
  float* scores = scratch + Heads * padded;
  for (int h = 0; h < Heads; ++h) {
    memcpy(scratch + h * padded, query + h * dim, (size_t)dim * sizeof(float));
    memset(scratch + h * padded + dim, 0, (size_t)(padded - dim) * sizeof(float));
  }
  score<Heads>(scratch, padded, dim, keys, scale, scores, line);
  float totals[Heads];
  for (int h = 0; h < Heads; ++h) totals[h] = weigh(scores + h * line, keys.length);
  mix<Heads>(values, scores, line, totals, out, dim);
}

void attend(const TreeAttention& a, int64_t row, int64_t kv_head, const int32_t* visible_rows, int64_t n_visible,
            float* scratch) {
  const int64_t dim = a.head_dim, group = a.query_heads / a.kv_heads, stride = a.kv_heads * dim, offset = kv_head * dim;
  const int64_t first = (row * a.query_heads + kv_head * group) * dim, length = a.cache_length + n_visible;
  const float* query = a.query + first;
  float* out = a.out + first;
  if (length == 0) {
    memset(out, 0, (size_t)(group * dim) * sizeof(float));
    return;
  }
  const Sequence keys = {a.key_cache + offset, a.key + offset, visible_rows, a.cache_length, length, stride};
  const Sequence values = {a.value_cache + offset, a.value + offset, visible_rows, a.cache_length, length, stride};
  for (int64_t left = group; left > 0;) {
    const int64_t heads = left < kHeadBlock ? left : kHeadBlock;
    switch (heads) {
      case 1:
        attend_heads<1>(query, keys, values, dim, a.scale, out, scratch);
        break;
      case 2:
        attend_heads<2>(query, keys, values, dim, a.scale, out, scratch);
        break;
      case 3:
        attend_heads<3>(query, keys, values, dim, a.scale, out, scratch);
        break;
      default:
        attend_heads<4>(query, keys, values, dim, a.scale, out, scratch);
        break;
    }
    query += heads * dim, out += heads * dim, left -= heads;
  }
}

// Keeps `values`/`columns` sorted, best first; of equal values the earlier column stays ahead.
SF_INLINE void insert_sorted(float* values, int64_t* columns, int64_t filled, float value, int64_t column) {
  int64_t at = filled;
  for (; at > 0 && values[at - 1] < value; --at) {
    values[at] = values[at - 1];
    columns[at] = columns[at - 1];
  }
  values[at] = value;
  columns[at] = column;
}

// log(x) for normal x > 0 (anything else comes back as it is), in double precision, so that no C library has a say in
// the bits: x = 2^n m with m around 1, and the series of atanh((m - 1) / (m + 1)).
float log_of(float x) {
  if (!(x > 0.0f) || x > 3.4e38f) return x;
  int n = 0;
  double m = x;
  for (; m >= 1.5; m *= 0.5) ++n;
  for (; m < 0.75; m *= 2.0) --n;
  const double s = (m - 1.0) / (m + 1.0), square = s * s;
  double series = 0.0;
  for (int i = 19; i > 0; i -= 2) series = series * square + 1.0 / i;
  return (float)(n * 0.69314718055994530942 + 2.0 * s * series);
}

SF_INLINE float nan_as_smallest(float x) { return x == x ? x : -__builtin_inff(); }

void top_k_row(const TopKLogProb& a, int64_t row) {
  const float* logits = a.logits + row * a.columns;
  float* values = a.out_log_probs + row * a.k;
  int64_t* columns = a.out_ids + row * a.k;
  for (int64_t c = 0; c < a.k; ++c) insert_sorted(values, columns, c, nan_as_smallest(logits[c]), c);
  const int64_t last = a.k - 1;
  int64_t c = a.k;
  for (; c + kLanes <= a.columns; c += kLanes) {
    if (!any_greater(load(logits + c), splat(values[last]))) continue;
    for (int64_t i = c; i < c + kLanes; ++i)
      if (logits[i] > values[last]) insert_sorted(values, columns, last, logits[i], i);
  }
  for (; c < a.columns; ++c)
    if (logits[c] > values[last]) insert_sorted(values, columns, last, logits[c], c);

  const float best = values[0];
  const Lanes shift = splat(-best);
  Lanes total = splat(0.0f);
  const int64_t whole = a.columns / kLanes * kLanes;
  for (c = 0; c < whole; c += kLanes) total = add(total, exp_of_nonpositive(add(load(logits + c), shift)));
  if (whole < a.columns) {
    float tail[kLanes];
    for (int i = 0; i < kLanes; ++i) tail[i] = whole + i < a.columns ? logits[whole + i] - best : -__builtin_inff();
    total = add(total, exp_of_nonpositive(load(tail)));
  }
  const float log_total = log_of(sum(total));
  for (int64_t i = 0; i < a.k; ++i) {
    values[i] = (values[i] - best) - log_total;
    columns[i] = a.ids[columns[i]];
  }
}

}  // namespace

extern const ProductKernels kProducts;  // product_kernels.cpp
extern const LaneKernels kTable;
const LaneKernels kTable = {SF_STRINGIFY(STREAMFUSE_ISA), attend, top_k_row, &kProducts};

}  // namespace STREAMFUSE_ISA
}  // namespace streamfuse
