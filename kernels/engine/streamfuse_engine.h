/* The native engine: runs the methods of a .pte and owns the cache memory of a sequence. It fills the core's table of
 * functions (sf_backend in core/streamfuse_core.h); its own functions serve tests, benches and experiments.
 *
 * A program is a loaded file; an engine is one sequence on it. Many engines may run on one program, in any threads.
 *
 * Rules
 *   - Functions that return int return SF_OK or an error code of core/streamfuse_core.h. The sentence of the last
 * failure stays on the handle: sf_program_error, sf_engine_error. A program that could not be opened is a handle too,
 * which must be closed.
 *   - Nothing aborts the process because of its input: arguments are checked before ExecuTorch sees them, and an
 *     ExecuTorch check that still fails becomes SF_BROKEN.
 *   - Pointers handed out belong to the library. A program's description lives as long as the program; results until
 *     the next sf_engine_run on their engine (stream_ids and stream_log_probs: or sf_engine_streams).
 *   - Calls on one engine are serialised by a lock; different engines are independent. sf_engine_free and
 *     sf_program_close must not race with other calls on the same handle. Engines keep their program's memory alive.
 *   - The library's threads are one team for the process; an engine that finds it at work computes on its own thread
 *     alone.
 */
#ifndef STREAMFUSE_ENGINE_H
#define STREAMFUSE_ENGINE_H

#include "streamfuse_core.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct sf_program sf_program;
typedef struct sf_engine sf_engine;

/* Maps the file and loads all methods once, so that any error is reported here. num_threads 0 chooses for
 * this machine. *out is a handle also where this fails, unless memory is out. */
SF_EXPORT int sf_program_open(const char* pte_path, int num_threads, sf_program** out);
SF_EXPORT void sf_program_close(sf_program*);
SF_EXPORT const char* sf_program_error(const sf_program*);

/* {"methods": {name: {"rows", "keep", "logits", "streams", "carrying", "hidden"}}, "layers", "kv_heads", "head_dim",
 *  "capacity", "vocab_size", "num_streams", "top_k", "constants": {name: number or text}, "threads", "instruction_set",
 *  "cache_bytes"} */
SF_EXPORT int sf_program_describe(sf_program*, const char** json);

/* The facts of the program for sf_core_model_open; without stop tokens and identity. What it points to lives as long as
 * the program. */
SF_EXPORT int sf_program_spec(sf_program*, sf_spec* out);

/* Whether a manifest's facts are the program's: SF_BAD_PROGRAM names the first that differs. Stop tokens and identity
 * are not compared, and the program may have verify methods that the manifest does not name. */
SF_EXPORT int sf_program_check(sf_program*, const sf_spec* manifest);

SF_EXPORT int sf_engine_new(sf_program*, sf_engine** out);
SF_EXPORT void sf_engine_free(sf_engine*);
SF_EXPORT const char* sf_engine_error(const sf_engine*);

/* The engine as a table of functions for sf_sequence_new; its `release` is sf_engine_free. */
SF_EXPORT int sf_engine_backend(sf_engine*, sf_backend* out);

/* One pass over n real rows, 1 <= n <= rows of the method; the engine pads. ancestors is n*n bytes, row-major, 0 or 1:
 * its diagonal is 1 and nothing lies above it. Changes no cache row. */
SF_EXPORT int sf_engine_run(sf_engine*, const char* method, int n, const int64_t* input_ids,
                            const int64_t* position_ids, const uint8_t* ancestors, int want_logits);

/* The deferred schedule: streams of one survivor of the last pass, `index` among its survivors, all rows up to which
 * are committed; next_token is what the model chose after it, which programs take whose streams are told it. Its
 * stream_ids and stream_log_probs take the place of the pass's own. */
SF_EXPORT int sf_engine_streams(sf_engine*, int index, int64_t next_token);

/* Where the results of the last run lie. Those of one method lie at the same place each time, until
 * sf_engine_profile. */
SF_EXPORT int sf_engine_read(sf_engine*, sf_results* out);

/* Copies keys and values of these rows of the last run to cache positions length, length + 1, ... in the order given.
 * All or nothing. A second commit after one run continues. */
SF_EXPORT int sf_engine_commit(sf_engine*, const int32_t* rows, int n);

/* Forgets positions from `length` on. Rows of a run that saw forgotten positions can no longer be committed. */
SF_EXPORT int sf_engine_truncate(sf_engine*, int64_t length);

SF_EXPORT int sf_engine_length(sf_engine*, int64_t* length);

/* Starts or ends a profile of every operator. The engine's methods are loaded anew, which forgets the last run but no
 * cache row. sf_engine_profile_data gives what was recorded since the start or since it was last asked, as an ETDump
 * for ExecuTorch's Inspector; the bytes stay valid until the next call. */
SF_EXPORT int sf_engine_profile(sf_engine*, int on);
SF_EXPORT int sf_engine_profile_data(sf_engine*, const void** data, size_t* size);

/* Which backends of a .pte this library can run on this machine, by the manifest's names: {name: null, or the sentence
 * that says why not}. One that is neither linked nor loaded by the engine itself is not in it. Loads the libraries of
 * the vendors to find out. The text lives as long as the process; null where memory is out. */
SF_EXPORT const char* sf_engine_backends(void);

/* Milliseconds that this thread has waited inside passes for other threads of the team, since it last asked. */
SF_EXPORT double sf_waited_ms(void);

/* How fast this machine's memory gives bytes to so many threads of the team (1 to 64; 0 chooses), in GB/s; takes about
 * 100 ms. 0 for a number of threads that is not allowed. */
SF_EXPORT double sf_read_bandwidth(int num_threads);

/* Nanoseconds that a value takes from one core's cache to another's now; 0 where it cannot be found out, as with a
 * single core. Operators hand their rows from core to core, so a pass takes longer where cores are far apart. */
SF_EXPORT double sf_core_distance_ns(void);

#ifdef __cplusplus
}
#endif
#endif
