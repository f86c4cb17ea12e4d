// top_k_log_prob: the k best columns of each row with their log-softmax, without writing a [rows, columns] block.
//
// Contract (docs/contracts.md, section 6): logits float32 [rows, columns], ids int64 [columns], 1 <= k <= columns.
//   out_ids [rows, k]        ids[column], best first; equal logits by smaller column; a NaN counts as the smallest
//   value out_log_probs [rows, k]  logit - (max + log(sum(exp(logit - max))))
// A row's result does not depend on the other rows.
#pragma once

#include <cstddef>
#include <cstdint>

namespace streamfuse {

struct TopKLogProb {
  const float* logits;
  const int64_t* ids;
  int64_t* out_ids;
  float* out_log_probs;
  int64_t rows;
  int64_t columns;
  int64_t k;
};

void top_k_log_prob(const TopKLogProb& args);

}  // namespace streamfuse
