// Drafting on the host: the most probable tree under the streams of one node, sharpened by the parent term
// (docs/contracts.md, section 4). Standalone C++17, without ExecuTorch; runtime/draft.py holds the same in numpy and is
// the reference. Part of libstreamfuse_engine; runtime/native_grow.py uses it where the library has it.
#pragma once

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// All memory belongs to the caller. float16 values are passed as their bits.
typedef struct sf_growth {
  // The parent term; parent_left is NULL, or rank 0, where it is off.
  const uint16_t* parent_left;  // float16 [vocab_size, rank]
  const float* parent_right;    // [slots, rank]
  const float* gate;            // [streams or more, rank]
  const int32_t* slot_of;       // [vocab_size]: row of parent_right, -1 where the token is not in the stream vocabulary
  int64_t vocab_size;
  int64_t rank;
  // The streams of the node that was accepted last.
  const int64_t* stream_ids;      // [streams, top_k]
  const float* stream_log_probs;  // [streams, top_k], natural log
  int64_t streams;
  int64_t top_k;
  // What to grow.
  int64_t root;   // token
  int64_t width;  // nodes at most, the root counted
  int64_t depth;  // levels below the root at most
  // The tree, room for `width` rows: as in runtime/tree.py, best first.
  int64_t* tokens;
  int64_t* parents;
  int64_t* depths;
  double* log_probs;
  uint8_t* ancestors;  // [n, n] for the n rows that were grown
} sf_growth;

// The n-gram table and a tree from it (docs/contracts.md, section 4; runtime/ngram_table.py is the reference).
typedef struct sf_ngram_growth {
  const int64_t* keys;     // [contexts], ascending: token * (vocab_size + 1) + before + 1
  const int32_t* first;    // [vocab_size + 1]: where the contexts of each last token begin among the keys
  const int32_t* starts;   // [contexts + 1]: where the entries of each context begin
  const int32_t* ids;      // most probable first
  const float* log_probs;  // natural log
  int64_t vocab_size;
  // What to grow.
  int64_t before;  // the token before the root, -1 where there is none
  int64_t root;
  int64_t width;
  int64_t depth;
  double least;  // paths of this log-probability or less are left out
  // The tree, as above.
  int64_t* tokens;
  int64_t* parents;
  int64_t* depths;
  double* tree_log_probs;
  uint8_t* ancestors;
} sf_ngram_growth;

// The number of rows n >= 1; -2 for a width below 1 or tokens outside the vocabulary.
int sf_grow_ngrams(sf_ngram_growth* growth);

// The number of rows n >= 1; -1 where a stream proposes a token outside the stream vocabulary, -2 for sizes below 1.
int sf_grow(sf_growth* growth);

#ifdef __cplusplus
}
#endif
