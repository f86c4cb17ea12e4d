// head: vocabulary logits and their argmax. capped_head: as head, with soft-capped logits cap tanh(x / cap).
// stream_top_k: the best candidates of the stream head with log-probabilities.
//
// Contract (docs/contracts.md, section 7): x float32 [rows, inputs].
//   head          logits [rows, vocab_size], written only if not null; best int64 [rows], the smaller id on ties; a NaN
//                 counts as the smallest value
//   capped_head   as head; best is the argmax before capping
//   stream_top_k  ids int64 [columns]; out_ids, out_log_probs [rows, k] as in top_k.h, of the stream head's logits
// Row-invariant.
#pragma once

#include "prepare.h"

namespace streamfuse {

struct Head {
  ProductInput input;
  Packed weight;
  int64_t vocab_size;
  float* logits;
  int64_t* best;
  float cap = 0.0f;  // 0: none
};

void head(const Head& args);

struct StreamTopK {
  ProductInput input;
  Packed weight;
  const int64_t* ids;
  int64_t columns;
  int64_t k;
  int64_t* out_ids;
  float* out_log_probs;
};

void stream_top_k(const StreamTopK& args);

}  // namespace streamfuse
