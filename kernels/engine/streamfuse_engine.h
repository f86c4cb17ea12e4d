/* The native engine: runs the methods of a .pte and owns the cache memory. C interface, the same for Python (ctypes),
 * Kotlin (JNI) and Swift.
 *
 * A program is a loaded file; a session is one sequence on it. Many sessions may run on one program, in any threads.
 *
 * Rules
 *   - Functions that return int return SF_OK or an error code; sf_last_error says it in one sentence.
 *   - Nothing aborts the process because of its input: arguments are checked before ExecuTorch sees them, and an
 * ExecuTorch check that still fails becomes SF_BROKEN.
 *   - Pointers handed out belong to the library. A program's description lives as long as the program; results until
 * the next sf_run on their session (stream_ids and stream_log_probs: or sf_streams); an error's text until the next
 * failing call on this thread.
 *   - Calls on one session are serialised by a lock; different sessions are independent. sf_free_session and sf_close
 * must not race with other calls on the same handle. Sessions keep their program's memory alive.
 *   - The library's threads are one team for the process; a session that finds it at work computes on its own thread
 * alone.
 */
#ifndef STREAMFUSE_ENGINE_H
#define STREAMFUSE_ENGINE_H

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define SF_EXPORT __attribute__((visibility("default")))
#else
#define SF_EXPORT
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef struct sf_program sf_program;
typedef struct sf_session sf_session;

enum {
  SF_OK = 0,
  SF_BAD_ARGUMENT = 1,     /* the caller's numbers: ranges, lengths, a null pointer, an unknown name */
  SF_BAD_PROGRAM = 2,      /* the file: missing, damaged, or not of the shape of docs/contracts.md */
  SF_MISSING_OPERATOR = 3, /* the program needs an operator or backend that this library does not carry */
  SF_CONTEXT_FULL = 4,     /* the cache has no room for these rows */
  SF_NOT_KEPT = 5,         /* a row to commit did not survive, or there is no run to read or commit from */
  SF_EXECUTION = 6,        /* ExecuTorch reported an error while running */
  SF_OUT_OF_MEMORY = 7,
  SF_BROKEN = 8 /* an internal check failed; free this session */
};

/* What the last run left, real nodes only. A pointer is NULL where the method has no such output. */
typedef struct {
  int64_t survivors; /* K' */
  int64_t carrying;  /* M': the first so many of the survivors have streams; 1 after sf_streams */
  int64_t vocab_size, num_streams, top_k;
  const float* logits;           /* [K', vocab_size]; undefined contents without want_logits */
  const int64_t* best;           /* [K'] */
  const int64_t* kept;           /* [K'], rows; known for every method */
  const int64_t* stream_ids;     /* [M', num_streams, top_k] */
  const float* stream_log_probs; /* [M', num_streams, top_k] */
} sf_results;

/* Maps the file and loads all methods once, so that whatever is wrong with them is said here. num_threads 0 chooses for
 * this machine. On failure *out is NULL. */
SF_EXPORT int sf_open(const char* pte_path, int num_threads, sf_program** out);
SF_EXPORT void sf_close(sf_program*);

/* {"methods": {name: {"rows", "keep", "logits", "streams", "carrying", "hidden"}}, "layers", "kv_heads", "head_dim",
 *  "capacity", "vocab_size", "num_streams", "top_k", "constants": {name: number or text}, "threads", "instruction_set",
 *  "cache_bytes"} */
SF_EXPORT int sf_describe(sf_program*, const char** json);

SF_EXPORT int sf_new_session(sf_program*, sf_session** out);
SF_EXPORT void sf_free_session(sf_session*);

/* One pass over n real rows, 1 <= n <= rows of the method; the engine pads. ancestors is n*n bytes, row-major, 0 or 1:
 * its diagonal is 1 and nothing lies above it. Changes no cache row. */
SF_EXPORT int sf_run(sf_session*, const char* method, int n, const int64_t* input_ids, const int64_t* position_ids,
                     const uint8_t* ancestors, int want_logits);

/* The deferred schedule: streams of one survivor of the last pass, `index` among its survivors, all rows up to which
 * are committed. Its stream_ids and stream_log_probs take the place of the pass's own. */
SF_EXPORT int sf_streams(sf_session*, int index);

/* Where the results of the last run lie. A session's results of one method lie at the same place each time, until
 * sf_profile. */
SF_EXPORT int sf_read(sf_session*, sf_results* out);

/* Copies keys and values of these rows of the last run to cache positions length, length + 1, ... in the order given.
 * All or nothing. A second commit after one run continues. */
SF_EXPORT int sf_commit(sf_session*, const int32_t* rows, int n);

/* Forgets positions from `length` on. Rows of a run that saw forgotten positions can no longer be committed. */
SF_EXPORT int sf_truncate(sf_session*, int64_t length);

SF_EXPORT int sf_length(sf_session*, int64_t* length);

/* Starts or ends a profile of every operator. The session's methods are loaded anew, which forgets the last run but no
 * cache row. sf_profile_data gives what was recorded since the start or since it was last asked, as an ETDump for
 * ExecuTorch's Inspector; the bytes stay valid until the next call. */
SF_EXPORT int sf_profile(sf_session*, int on);
SF_EXPORT int sf_profile_data(sf_session*, const void** data, size_t* size);

/* Milliseconds that this thread has waited inside sf_run and sf_streams for other threads of the team, since it last
 * asked. */
SF_EXPORT int sf_waited(double* ms);

/* How fast this machine's memory gives bytes to so many threads of the team, in GB/s; takes about 100 ms. 0 chooses. */
SF_EXPORT int sf_read_bandwidth(int num_threads, double* gb_per_s);

/* Nanoseconds that a value takes from one core's cache to another's now; 0 where it cannot be found out, as with a
 * single core. Operators hand their rows from core to core, so a pass takes longer where cores are far apart. */
SF_EXPORT int sf_core_distance(double* ns);

/* The sentence of the last failure on this thread. Never NULL. */
SF_EXPORT const char* sf_last_error(void);

#ifdef __cplusplus
}
#endif
#endif
