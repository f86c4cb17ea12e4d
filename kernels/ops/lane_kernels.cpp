// The kernels over Lanes. Compiled once per instruction set; see lanes.h for what may be used here.
#include "rounding.h"

#include "lane_kernels.h"

#include "attention_lanes.h"

namespace streamfuse {
namespace STREAMFUSE_ISA {
namespace {

// Keeps `values`/`columns` sorted, best first; on ties the earlier column comes first.
SF_INLINE void insert_sorted(float* values, int64_t* columns, int64_t filled, float value, int64_t column) {
  int64_t at = filled;
  for (; at > 0 && values[at - 1] < value; --at) {
    values[at] = values[at - 1];
    columns[at] = columns[at - 1];
  }
  values[at] = value;
  columns[at] = column;
}

// log(x) for normal x > 0 (other values are returned unchanged), in double precision and independent of the C library,
// so that results are bit-identical everywhere: x = 2^n m with m near 1, and the series of atanh((m - 1) / (m + 1)).
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

void top_k_row(const TopK& a, int64_t row) {
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

extern const LaneKernels kTable;
const LaneKernels kTable = {
    SF_STRINGIFY(STREAMFUSE_ISA), attend, top_k_row, store_key_head, store_value_head, &kProducts, fuses_products};

}  // namespace STREAMFUSE_ISA
}  // namespace streamfuse
