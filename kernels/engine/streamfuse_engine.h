/* The native engine: runs the methods of one .pte and owns the cache memory. C interface, the same for Python (ctypes),
 * Kotlin (JNI) and Swift.
 *
 * Rules
 *   - Every function but sf_last_error and sf_close returns SF_OK or an error code; sf_last_error says it in one sentence.
 *   - Nothing aborts the process because of its input: arguments are checked before ExecuTorch sees them, and an ExecuTorch
 *     check that still fails becomes SF_BROKEN.
 *   - Pointers handed out (describe, output, last_error) belong to the engine. An output stays valid until the next sf_run
 *     or sf_close; the text of sf_last_error until the next failing call.
 *   - One handle serves one sequence. Calls on one handle are serialised by a lock; different handles are independent and may
 *     be used from different threads. sf_close must not race with other calls on the same handle.
 *   - The ExecuTorch thread pool is shared by the process. The first open engine sets its size; later ones run on that pool
 *     whatever they ask for, until all are closed (sf_describe says the size in use).
 */
#ifndef STREAMFUSE_ENGINE_H
#define STREAMFUSE_ENGINE_H

#include <stdint.h>

#if defined(__GNUC__)
#define SF_EXPORT __attribute__((visibility("default")))
#else
#define SF_EXPORT
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef struct sf_engine sf_engine;

enum {
  SF_OK = 0,
  SF_BAD_ARGUMENT = 1,      /* the caller's numbers: ranges, lengths, a null pointer, an unknown name */
  SF_BAD_PROGRAM = 2,       /* the file: missing, damaged, or not of the shape of docs/contracts.md */
  SF_MISSING_OPERATOR = 3,  /* the program needs an operator or backend that this library does not carry */
  SF_CONTEXT_FULL = 4,      /* the cache has no room for these rows */
  SF_NOT_KEPT = 5,          /* a row to commit did not survive, or there is no run to commit from */
  SF_EXECUTION = 6,         /* ExecuTorch reported an error while running */
  SF_OUT_OF_MEMORY = 7,
  SF_BROKEN = 8             /* an internal check failed; close this engine */
};

/* Element types of sf_output, numbered as ExecuTorch's ScalarType. */
enum { SF_INT64 = 4, SF_FLOAT32 = 6 };

/* Loads all methods of the file. num_threads 0 leaves the pool as it is. On failure *out is NULL and the sentence is at
 * sf_last_error(NULL) of the same thread. */
SF_EXPORT int sf_open(const char* pte_path, int num_threads, sf_engine** out);

/* {"methods": {name: {"rows", "keep", "logits", "streams"}}, "layers", "kv_heads", "head_dim", "capacity", "vocab_size",
 *  "num_streams", "top_k", "constants": {name: number or text}, "threads", "instruction_set", "cache_bytes"} */
SF_EXPORT int sf_describe(sf_engine*, const char** json);

/* One pass over n real rows, 1 <= n <= rows of the method; the engine pads. ancestors is n*n bytes, row-major, 0 or 1: its
 * diagonal is 1 and nothing lies above it. Changes no cache row. */
SF_EXPORT int sf_run(sf_engine*, const char* method, int n, const int64_t* input_ids, const int64_t* position_ids,
                     const uint8_t* ancestors);

/* An output of the last run, real nodes only (K' of them): logits [K', V], kept [K'], stream_ids [K', G, k],
 * stream_log_probs [K', G, k]. shape has room for 4 numbers. `kept` is known for every method. */
SF_EXPORT int sf_output(sf_engine*, const char* name, const void** data, int64_t* shape, int* rank, int* dtype);

/* Copies keys and values of these rows of the last run to cache positions length, length + 1, ... in the order given. All or
 * nothing. A second commit after one run continues. */
SF_EXPORT int sf_commit(sf_engine*, const int32_t* rows, int n);

/* Forgets positions from `length` on. Rows of a run that saw forgotten positions can no longer be committed. */
SF_EXPORT int sf_truncate(sf_engine*, int64_t length);

SF_EXPORT int sf_length(sf_engine*, int64_t* length);

/* The sentence of the last failure on this engine, or of the last failing sf_open on this thread for NULL. Never NULL. */
SF_EXPORT const char* sf_last_error(sf_engine*);

SF_EXPORT void sf_close(sf_engine*);

#ifdef __cplusplus
}
#endif
#endif
