// The row kernel of stream_top_k: the k best columns of a row of logits with their log-softmax.
//
// Contract: logits float32 [rows, columns], ids int64 [columns], 1 <= k <= columns.
//   out_ids [rows, k]        ids[column], best first; ties by smaller column; a NaN counts as the smallest value
//   out_log_probs [rows, k]  logit - (max + log(sum(exp(logit - max))))
// A row's result does not depend on the other rows.
#pragma once

#include <cstdint>

namespace streamfuse {

struct TopK {
  const float* logits;
  const int64_t* ids;
  int64_t* out_ids;
  float* out_log_probs;
  int64_t rows;
  int64_t columns;
  int64_t k;
};

}  // namespace streamfuse
