// Choosing a token on the host: the filters and the draw of docs/random.md for one row of logits, without an array of
// the vocabulary's size in between. Standalone C++20, without ExecuTorch; runtime/sampling.py holds the same in numpy
// and is the reference. Part of libstreamfuse_engine; runtime/native_sample.py uses it where the library has it.
#pragma once

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// All memory belongs to the caller.
typedef struct sf_sampling {
  const float* logits;   // [vocab_size]
  const double* scores;  // [vocab_size]: taken in the place of logits unless NULL (what a repetition penalty left)
  int64_t vocab_size;
  double temperature;  // above 0
  int64_t top_k;       // 0 = off
  double top_p;        // 1 = off
  double min_p;        // 0 = off
  double uniform;      // in [0, 1)
  double distance;     // result: from the target to the next or the last token's edge, of the total
} sf_sampling;

// The token; -1 where only the last bits of an exponential decide, or a number is not finite: ask the reference.
// So a token that is given is the reference's own, whatever exponential either of them uses.
int64_t sf_sample(sf_sampling* sampling);

#ifdef __cplusplus
}
#endif
