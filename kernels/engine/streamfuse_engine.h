/* The native engine: runs the methods of a .pte and owns the cache memory of a sequence. It fills the core's table of
 * functions (sf_backend in core/streamfuse_core.h); its own functions are for tests, benchmarks and experiments.
 *
 * A program is a loaded file; an engine is one sequence on it. Many engines may run on one program, in any threads.
 *
 * Rules
 *   - Functions that return int return SF_OK or an error code of core/streamfuse_core.h. The message of the last
 *     failure stays on the handle: sf_program_error, sf_engine_error. A program that could not be opened is also a
 *     handle, which must be closed.
 *   - No input aborts the process: arguments are checked before they are passed to ExecuTorch, and a check of
 *     ExecuTorch that still fails becomes SF_BROKEN.
 *   - Returned pointers belong to the library. A program's description is valid as long as the program; results until
 *     the next sf_engine_run on their engine (stream_ids and stream_log_probs also until sf_engine_streams).
 *   - Calls on one engine are serialised by a lock; different engines are independent. sf_engine_free and
 *     sf_program_close must not race with other calls on the same handle. Engines keep their program's memory alive.
 *   - The process has one thread pool for all engines; an engine that finds it busy computes on the calling thread
 *     alone. Only programs that call this library's operators start and wake it.
 */
#ifndef STREAMFUSE_ENGINE_H
#define STREAMFUSE_ENGINE_H

#include "streamfuse_core.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct sf_program sf_program;
typedef struct sf_engine sf_engine;

/* Maps the file and loads all methods once, so that any error is reported here. num_threads 0 chooses for this machine.
 * `watch` (may be NULL) is called before each method is loaded, and counts methods. *out is a handle even if this
 * fails, unless memory is exhausted. */
SF_EXPORT int sf_program_open(const char* pte_path, int num_threads, const sf_watch* watch, sf_program** out);
SF_EXPORT void sf_program_close(sf_program*);
SF_EXPORT const char* sf_program_error(const sf_program*);

/* The methods of an adapter in the same file, which are called "NAME.METHOD" there, as a program of its own: the mapped
 * file and its weights are shared. SF_BAD_ARGUMENT if there is no adapter of this name. Either program may be closed
 * first. *out is a handle even if this fails, unless memory is exhausted. */
SF_EXPORT int sf_program_adapter(sf_program*, const char* name, sf_program** out);

/* {"methods": {name: {"rows", "keep", "logits", "streams", "carrying", "hidden"}}, "layers" (those that have caches),
 * "kv_heads": [of each layer], "head_dims": [of each layer], "capacity", "vocab_size", "num_streams", "top_k",
 * "constants": {name: number or text}, "threads", "instruction_set", "cache_bytes"} */
SF_EXPORT int sf_program_describe(sf_program*, const char** json);

/* The number of threads that passes of this program use, also "threads" in its description. XNNPACK has one thread pool
 * per process, with at most one thread per core; the first open program that uses it sets its size. On macOS, the
 * executorch wheel does not export the pool's functions, so this is the requested number. */
SF_EXPORT int sf_program_threads(sf_program*, int32_t* threads);

/* The program's specification for sf_core_model_open, without stop tokens and identity. Its pointers are valid as long
 * as the program. */
SF_EXPORT int sf_program_spec(sf_program*, sf_spec* out);

/* Compares a manifest's values with the program's: SF_BAD_PROGRAM names the first difference. Stop tokens and identity
 * are not compared, and the program may have verify methods that the manifest does not name. */
SF_EXPORT int sf_program_check(sf_program*, const sf_spec* manifest);

SF_EXPORT int sf_engine_new(sf_program*, sf_engine** out);
SF_EXPORT void sf_engine_free(sf_engine*);
SF_EXPORT const char* sf_engine_error(const sf_engine*);

/* The engine as a table of functions for sf_sequence_new; its `release` is sf_engine_free. */
SF_EXPORT int sf_engine_backend(sf_engine*, sf_backend* out);

/* One pass over n real rows, 1 <= n <= rows of the method; the engine pads. ancestors is n*n bytes, row-major, 0 or 1:
 * its diagonal is 1 and all entries above it are 0. Does not change the cache. */
SF_EXPORT int sf_engine_run(sf_engine*, const char* method, int n, const int64_t* input_ids,
                            const int64_t* position_ids, const uint8_t* ancestors, int want_logits);

/* Deferred schedule: computes the streams of one survivor of the last pass, by its index among the survivors, after all
 * rows on its path were committed. next_token is the token that the model chose after it, for programs whose streams
 * are conditioned on it. The stream_ids and stream_log_probs replace those of the pass. */
SF_EXPORT int sf_engine_streams(sf_engine*, int index, int64_t next_token);

/* The results of the last run. The arrays of one method have the same addresses in every run, until
 * sf_engine_profile. */
SF_EXPORT int sf_engine_read(sf_engine*, sf_results* out);

/* Copies keys and values of these rows of the last run to cache positions length, length + 1, ... in the order given.
 * All or nothing. A second commit after one run continues. */
SF_EXPORT int sf_engine_commit(sf_engine*, const int32_t* rows, int n);

/* Drops positions from `length` on. Rows of a run that attended to dropped positions can no longer be committed. */
SF_EXPORT int sf_engine_truncate(sf_engine*, int64_t length);

/* The longest prefix of at most `length` positions that sf_engine_truncate accepts: `length`, or 0 if layers with a
 * sliding window, convolution or linear attention have lost what it needs. */
SF_EXPORT int sf_engine_truncatable(sf_engine*, int64_t length, int64_t* longest);

SF_EXPORT int sf_engine_length(sf_engine*, int64_t* length);

/* Starts or ends profiling of every operator. This reloads the engine's methods, which discards the last run but keeps
 * the cache; on failure, the previous methods stay loaded. sf_engine_profile_data returns what was recorded since the
 * start or since its last call, as an ETDump for ExecuTorch's Inspector; the bytes are valid until the next call. */
SF_EXPORT int sf_engine_profile(sf_engine*, int on);
SF_EXPORT int sf_engine_profile_data(sf_engine*, const void** data, size_t* size);

/* The backends of a .pte that this library supports on this machine, by their names in the manifest: {name: null if it
 * is available, otherwise the reason why not}. Backends that are neither linked nor loaded by the engine are not
 * listed. Loads the vendors' libraries to find out. The text is valid as long as the process; null if memory is
 * exhausted. */
SF_EXPORT const char* sf_engine_backends(void);

/* Milliseconds that this thread has waited inside passes for other threads of the pool since its last call. */
SF_EXPORT double sf_waited_ms(void);

/* Measures how fast this many threads of the pool (1 to 64; 0 chooses) read a block of memory repeatedly, in GB/s. If a
 * cache holds the block, this is the bandwidth of the cache. `bytes` is rounded down to 64 KiB. Returns 0 if an
 * argument is invalid or the block cannot be allocated. */
SF_EXPORT double sf_read_bandwidth(int num_threads, int64_t bytes);

/* Measures the latency from one core's cache to another's, in nanoseconds; 0 if it cannot be measured, for example with
 * a single core. Operators pass rows from core to core, so a pass takes longer if the cores are far apart. */
SF_EXPORT double sf_core_distance_ns(void);

#ifdef __cplusplus
}
#endif
#endif
