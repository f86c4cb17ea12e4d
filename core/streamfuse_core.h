/* streamfuse's core: the loop of speculative decoding, once for every language. For who writes an engine, or speaks
 * token ids; an app binds native/streamfuse.h, which opens bundles and speaks text.
 *
 * A model writes text token by token; here one pass of the model checks a small tree of guessed tokens, and what the
 * model itself would have chosen decides how many of them become text. The text is the same with guesses and without,
 * greedy or sampled. docs/core.md explains; this header is the reference.
 *
 *     sf_core_model* model;                                  // facts of a bundle, and its drafting tables
 *     if (sf_core_model_open(&spec, tensors, count, &model)) die(sf_core_model_error(model));
 *     sf_sequence* sequence;                                 // tokens on one engine
 *     if (sf_sequence_new(model, &backend, NULL, &sequence)) die(sf_sequence_error(sequence));
 *     sf_sequence_start(sequence, prompt, n, NULL);          // the whole context, all turns so far
 *     sf_token token;
 *     while (sf_sequence_next(sequence, &token) == SF_OK) show(token.id);
 *     puts(sf_sequence_statistics(sequence));
 *     sf_sequence_free(sequence);
 *     sf_core_model_close(model);
 *
 * Rules
 *   - Functions that return int return SF_OK, SF_END (sf_sequence_next and sf_sequence_read only) or an error code. The
 *     sentence of the last error stays on the handle until its next failing call: sf_sequence_error(sequence),
 *     sf_core_model_error(model).
 *   - sf_core_model_open and sf_sequence_new give a handle also where they fail (unless memory is out), so that it can
 *     say why; it must be freed like any other.
 *   - A model may be used by any number of sequences in any threads. A sequence is used by one thread at a time, but
 * for sf_sequence_stop, which any thread may call at any time before sf_sequence_free. Sequences keep their model
 * alive.
 *   - sf_spec, sf_backend, sf_sequence_options and sf_options begin with their size, so that they can grow: set it to
 *     sizeof.
 *   - No function throws, aborts, prints, starts a thread, or depends on the locale.
 */
#ifndef STREAMFUSE_CORE_H
#define STREAMFUSE_CORE_H

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

enum {
  SF_OK = 0,
  SF_BAD_ARGUMENT = 1,     /* the caller's numbers: ranges, lengths, a null pointer, an unknown name */
  SF_BAD_PROGRAM = 2,      /* a graph file: missing, damaged, or not of the shape of docs/contracts.md */
  SF_MISSING_OPERATOR = 3, /* a graph needs an operator or backend that the engine does not carry */
  SF_CONTEXT_FULL = 4,     /* the cache has no room for these rows */
  SF_NOT_KEPT = 5,         /* a row to commit did not survive, or there is no run to read or commit from */
  SF_EXECUTION = 6,        /* the engine reported an error while running */
  SF_OUT_OF_MEMORY = 7,
  SF_BROKEN = 8,     /* an internal check failed; free this handle */
  SF_BAD_TABLES = 9, /* the drafting tables contradict themselves or the model */
  SF_BAD_FILE = 10,  /* a saved session: missing, damaged, or of another bundle */
  SF_END = 100       /* sf_sequence_next: the text has ended; not an error */
};

/* ---- what an engine is ------------------------------------------------------------------------------------------ */

/* What a pass left, real nodes only. Pointers are the engine's, valid until its next run; NULL where there is no such
 * output. */
typedef struct sf_results {
  int64_t survivors; /* K': nodes that the pass kept */
  int64_t carrying;  /* M': the first so many of the survivors have streams */
  int64_t vocab_size, num_streams, top_k;
  const float* logits;           /* [K', vocab_size]; contents count only where they were asked for */
  const int64_t* best;           /* [K'] the most probable next token of each survivor, the smaller id of equal ones */
  const int64_t* kept;           /* [K'] rows of the tree, in any order, the root among them */
  const int64_t* stream_ids;     /* [M', num_streams, top_k] token ids, best first */
  const float* stream_log_probs; /* [M', num_streams, top_k] natural logarithm */
} sf_results;

/* An engine's functions, in the manner of sqlite3_vfs: it runs the methods of a bundle and owns the cache of one
 * sequence. Filled by the native engine (kernels/engine), or by the caller for an engine of its own. Functions return
 * SF_OK or an error code, whose sentence `error` gives. They are called by the thread that calls the sequence. */
typedef struct sf_backend {
  size_t size;
  void* context;
  /* One pass over n real rows; the engine pads. ancestors is n * n bytes, row-major: [i, j] is 1 where row j lies on
   * the path from the root to row i, i itself included. Changes no cache row. */
  int (*run)(void* context, const char* method, int32_t n, const int64_t* input_ids, const int64_t* position_ids,
             const uint8_t* ancestors, int32_t want_logits, sf_results* out);
  /* Deferred schedule: streams of one survivor (its place among them) of the last run, all rows up to which are
   * committed; only stream_ids and stream_log_probs [1, ...] count. next_token is the token that the model chose after
   * that node, for streams that are told it. May be NULL where the bundle has none. */
  int (*streams)(void* context, int32_t survivor, int64_t next_token, sf_results* out);
  /* Copies keys and values of these rows of the last run to the end of the cache, in the order given. */
  int (*commit)(void* context, const int32_t* rows, int32_t n);
  /* Forgets cache positions from `length` on. */
  int (*truncate)(void* context, int64_t length);
  /* The sentence of this engine's last failure. */
  const char* (*error)(void* context);
  /* Gives everything back; called once, by sf_sequence_free or a failing sf_sequence_new. May be NULL. */
  void (*release)(void* context);
  /* The first `length` cache positions as bytes, in the engine's own form: `bytes_of` says how many they are, `save`
   * hands them to `put` in order, in parts of any size, `load` (into an empty cache) reads them from `get` likewise.
   * If put or get does not return SF_OK, the engine returns that code. NULL if an engine cannot; then a restored
   * sequence prefills its tokens again. */
  int (*bytes_of)(void* context, int64_t length, uint64_t* bytes);
  int (*save)(void* context, int64_t length, int (*put)(void* to, const void* data, uint64_t bytes), void* to);
  int (*load)(void* context, int64_t length, int (*get)(void* from, void* data, uint64_t bytes), void* from);
  /* A text has ended, and no pass follows soon: threads that spin for one may sleep. May be NULL. */
  void (*idle)(void* context);
} sf_backend;

/* ---- what a bundle is ------------------------------------------------------------------------------------------- */

typedef struct sf_method {
  const char* name;   /* for example verify_8 */
  int32_t rows, keep; /* nodes that it takes, nodes that survive its pruner; 1 <= keep <= rows */
  int32_t carrying;   /* survivors that carry streams; 0 <= carrying <= keep */
} sf_method;

/* The facts of a manifest that the loop needs. */
typedef struct sf_spec {
  size_t size;
  int64_t capacity; /* tokens of context that the cache holds */
  int64_t vocab_size;
  int64_t num_streams;  /* 0 where the bundle has none; it drafts by look-up then */
  int64_t top_k;        /* candidates per stream */
  int64_t prefill_rows; /* prompt tokens per prefill pass */
  const sf_method* verify;
  int32_t verify_count;
  int32_t deferred;        /* whether the engine's `streams` works */
  const int64_t* stop_ids; /* the model's end-of-sequence tokens */
  int32_t stop_count;
  int32_t stream_vocab_size; /* tokens that streams may propose, which the table stream_vocab lists; 0: not known */
  const char* identity;      /* what tells this bundle from others, for example a hash of its files' hashes */
} sf_spec;

enum { SF_F16 = 1, SF_F32 = 2, SF_I32 = 3, SF_I64 = 4 };

/* One drafting table, as it lies in the bundle's draft.safetensors (docs/contracts.md). The memory must outlive the
 * model; every number in it is checked by sf_core_model_open. Names that are not known are refused. */
typedef struct sf_tensor {
  const char* name;
  int32_t dtype;
  int32_t rank; /* 1 or 2 */
  int64_t shape[2];
  const void* data;
} sf_tensor;

typedef struct sf_core_model sf_core_model;
typedef struct sf_sequence sf_sequence;

SF_EXPORT int sf_core_model_open(const sf_spec* spec, const sf_tensor* tensors, int32_t count, sf_core_model** out);
SF_EXPORT void sf_core_model_close(sf_core_model*);
SF_EXPORT const char* sf_core_model_error(const sf_core_model*); /* never NULL */

/* ---- a sequence of tokens ---------------------------------------------------------------------------------------- */

typedef struct sf_sequence_options {
  size_t size;
  double (*clock)(void* context); /* monotonic seconds; NULL: the system's */
  void* clock_context;
  const char* cost_file; /* where measured costs of passes are kept between processes; NULL: nowhere */
  const char* device;    /* what those costs hold for: processor, threads, build of the engine */
  double model_load_ms;  /* goes into the statistics as it is */
} sf_sequence_options;

/* The sequence takes the engine: it calls backend->release at its end, also where this call fails. options may be NULL.
 */
SF_EXPORT int sf_sequence_new(sf_core_model*, const sf_backend* backend, const sf_sequence_options* options,
                              sf_sequence** out);
SF_EXPORT void sf_sequence_free(sf_sequence*);
SF_EXPORT const char* sf_sequence_error(const sf_sequence*); /* never NULL */

typedef struct sf_options {
  size_t size;
  int64_t max_new_tokens;    /* at least 1 */
  double temperature;        /* 0: greedy */
  int64_t top_k;             /* 0: off */
  double top_p;              /* 1: off */
  double min_p;              /* 0: off */
  double repetition_penalty; /* 1: off */
  uint64_t seed;
  const int64_t* stop_ids; /* beside the model's own */
  int32_t stop_count;
  int32_t ignore_eos;  /* 1: the model's end-of-sequence tokens are tokens like others */
  int32_t speculative; /* 0: plain decoding */
  int32_t width;       /* nodes per verify pass; 0: chosen pass by pass, by measured cost */
} sf_options;

/* 128 tokens, greedy, speculative, planned. */
SF_EXPORT void sf_default_options(sf_options* out);

/* Measures the latency of passes on this device, unless that is known: from a sequence of this model and device, or
 * from the cost file, which some 50 ms of passes check. sf_sequence_start does it if it is needed. It takes at most
 * about 250 ms, or as long as decode, streams and the widest method take to run twice; sf_sequence_stop ends it after
 * the pass that runs. The KV cache is kept, unless it leaves no room for a pass. */
SF_EXPORT int sf_sequence_prepare(sf_sequence*);

/* Starts a text after the context ids[0..n): all turns so far, not only the new one. What it shares with the cache from
 * the beginning on is not read again. A text that still runs is finished. options may be NULL. */
SF_EXPORT int sf_sequence_start(sf_sequence*, const int64_t* ids, int64_t n, const sf_options* options);

enum { SF_MODEL = 0, SF_STREAMS = 1, SF_LOOKUP = 2, SF_TABLE = 3 };

typedef struct sf_token {
  int64_t id;
  int32_t source; /* who drafted it: the model itself (nobody), its streams, look-up in the text, the n-gram table */
  int32_t reserved;
} sf_token;

/* Reads the next part of the prompt, in one pass; SF_END once all of it is read, or the text has ended. *read of *total
 * tokens are in the cache then (either may be NULL). It need not be called: sf_sequence_next reads what is left. It
 * shows progress, and between two calls the text can be finished. */
SF_EXPORT int sf_sequence_read(sf_sequence*, int64_t* read, int64_t* total);

/* The next token. SF_END where the text has ended: a stop token (not delivered), max_new_tokens, a full context, or
 * sf_sequence_stop. Between two calls the cache agrees with the tokens that were delivered. */
SF_EXPORT int sf_sequence_next(sf_sequence*, sf_token* out);

/* Ends the text after the tokens delivered so far; what was computed beyond them is forgotten. `reason` goes into the
 * statistics: "stop" (a stop string), "stopped" (NULL means this). Nothing happens where no text runs. */
SF_EXPORT int sf_sequence_finish(sf_sequence*, const char* reason);

/* Ends the text at its next token. Any thread may call it. */
SF_EXPORT void sf_sequence_stop(sf_sequence*);

/* Forgets all tokens. */
SF_EXPORT int sf_sequence_reset(sf_sequence*);

/* The context and all tokens delivered after it, valid until the next call; the cache holds the first `cached`. */
SF_EXPORT int sf_sequence_tokens(sf_sequence*, const int64_t** ids, int64_t* n, int64_t* cached);

/* One JSON object about the last text, keys as in docs/runtime.md; valid until the next call on this sequence. NULL
 * if memory is exhausted. */
SF_EXPORT const char* sf_sequence_statistics(sf_sequence*);

/* How the last text ended: "stop", "length", "context" or "stopped", as in the statistics. Valid until the next call.
 */
SF_EXPORT const char* sf_sequence_finish_reason(const sf_sequence*);

/* Writes tokens, cache and a note of the caller (any bytes; NULL and 0: none) to a file, in one piece or not at all;
 * reads them back. A file of another bundle or version is refused, and so is a damaged one; then the sequence is as
 * before. The note of a valid file is passed to `take` (may be NULL) before anything changes: another code than SF_OK
 * refuses the file, and is returned. The note is valid in that call only. If the engine fails to load the cache, the
 * sequence is left empty. A text that runs is finished. */
SF_EXPORT int sf_sequence_save(sf_sequence*, const char* path, const void* note, size_t note_bytes);
SF_EXPORT int sf_sequence_restore(sf_sequence*, const char* path,
                                  int (*take)(void* context, const void* note, size_t bytes), void* context);

#ifdef __cplusplus
}
#endif
#endif
