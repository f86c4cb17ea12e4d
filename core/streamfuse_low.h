/* Low-level functions of the core for tests, benchmarks and experiments, not for apps. They may change between
 * versions. */
#ifndef STREAMFUSE_LOW_H
#define STREAMFUSE_LOW_H

#include "streamfuse_core.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A tree of n nodes: row 0 is the root, parents come before children, rows are best first. */
typedef struct sf_tree {
  int64_t n;
  const int64_t* tokens;   /* [n] */
  const int64_t* parents;  /* [n], rows; -1 for the root */
  const double* log_probs; /* [n], of the path from the root; 0 for the root */
  const uint8_t* sources;  /* [n], SF_STREAMS to SF_MEMORY; SF_MODEL for the root */
} sf_tree;

/* The results of one pass. Pointers are valid during the call. */
typedef struct sf_pass {
  const char* method;
  const char* reason; /* why a plain pass is plain; NULL if it is not a fall-back */
  sf_tree tree;
  const sf_results* results;
  const int32_t* walk_rows;   /* [walk_n] the accepted path, the root first */
  const int64_t* walk_tokens; /* [walk_n] the token chosen after each of them */
  int64_t walk_n;
  int64_t delivered; /* tokens of the path that were delivered */
  int64_t cached;    /* cache rows afterwards */
} sf_pass;

/* Calls the observer after each commit; NULL removes it. */
SF_EXPORT void sf_sequence_observe(sf_sequence*, void (*observer)(void* context, const sf_pass* pass), void* context);

/* Repeats the passes of a bundle's self-test on an engine, which it takes over, and compares the outputs with those
 * that the exporter stored: the arrays of sf_bundle_selftest_tensors in text/streamfuse_bundle.h. `put` gets the report
 * once, as JSON of `bytes` bytes (docs/bundle.md, "The self-test"). SF_BAD_FILE if the arrays do not fit the model. */
SF_EXPORT int sf_core_model_self_test(sf_core_model*, const sf_backend* engine, const sf_tensor* arrays, int32_t count,
                                      int (*put)(void* to, const void* json, size_t bytes), void* to);

/* Sets the costs in milliseconds per method: decode, the verify methods in the order of the spec, then streams if the
 * bundle is deferred. [count] with the fewest real rows for which no narrower method suffices, [count] with all rows.
 * Frozen costs are not corrected by measured passes. */
SF_EXPORT int sf_sequence_set_costs(sf_sequence*, const double* first, const double* last, int32_t count,
                                    int32_t frozen);

/* The most probable tree under streams [num_streams, top_k] of one node, with the parent term of the model's tables, in
 * text that is sampled with these options (NULL: greedy). `position` is that of the root's children. The arrays have
 * room for `width` rows, and paths for `depth` tokens after the root. Returns the number of rows, or minus an error
 * code. */
SF_EXPORT int64_t sf_grow_streams(sf_core_model*, int64_t root, const int64_t* stream_ids,
                                  const float* stream_log_probs, int64_t position, const sf_options* options,
                                  int64_t width, int64_t depth, int64_t* tokens, int64_t* parents, double* log_probs);

/* The same from the n-gram table after a text of `n` tokens, at least one; the last one is the root. */
SF_EXPORT int64_t sf_grow_table(sf_core_model*, const int64_t* text, int64_t n, const sf_options* options,
                                int64_t width, int64_t depth, int64_t* tokens, int64_t* parents, double* log_probs);

/* The same by look-up in a text of `n` tokens, without a memory and with the initial hit rates. */
SF_EXPORT int64_t sf_grow_lookup(const int64_t* text, int64_t n, int64_t vocab_size, const sf_options* options,
                                 int64_t width, int64_t depth, int64_t* tokens, int64_t* parents, double* log_probs);

/* The token that tests/traces/README.md chooses from a row of logits; minus an error code if the best is not finite.
 * `near_tie` (may be NULL): 1 if another engine's rounding might change the choice, else 0. */
SF_EXPORT int64_t sf_choose(const float* logits, int64_t vocab_size, const int64_t* history, int64_t n,
                            int64_t position, const sf_options* options, int32_t* near_tie);

/* The functions of tests/traces/README.md: the noise of a token in [0, vocab_size), exp and ln of n numbers. */
SF_EXPORT double sf_noise(uint64_t seed, int64_t position, int64_t token, int64_t vocab_size);
SF_EXPORT void sf_exp(const double* x, double* y, int64_t n);
SF_EXPORT void sf_log(const double* x, double* y, int64_t n);

/* A clock that evicts the processor's caches after each pass. Use sf_cold_clock_now as `clock` of sf_sequence_options
 * and a pointer to this structure as `clock_context`. It is in C because little code has to be fetched again after an
 * eviction; an interpreter would add about 0.1 ms to each reading. */
typedef struct sf_cold_clock {
  void (*evict)(void* context);
  void* context;
  double pass_s; /* evict if more seconds than this have passed since the last reading: that was a pass */
  double hidden; /* seconds spent in evictions, which readings leave out; initially 0 */
  double last;   /* the system's clock at the last reading, evictions included; initially 0 */
} sf_cold_clock;

/* Seconds of the system's monotonic clock, without those of evictions. `clock` is an sf_cold_clock. */
SF_EXPORT double sf_cold_clock_now(void* clock);

#ifdef __cplusplus
}
#endif
#endif
