/* streamfuse's core: the loop of speculative decoding, for every language. This header is for authors of engines and
 * for callers that work with token ids; an app uses native/streamfuse.h, which opens bundles and works with text.
 *
 * Instead of one token per pass, each pass of the model verifies a small tree of drafted tokens and accepts those that
 * the model itself would have chosen. On a row-invariant engine the output is identical with and without drafts, greedy
 * or sampled. docs/core.md is the guide; this header is the reference.
 *
 *     sf_core_model* model;                                  // a bundle's specification and drafting tables
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
 *     message of the last error stays on the handle until its next failing call: sf_sequence_error(sequence),
 *     sf_core_model_error(model).
 *   - sf_core_model_open and sf_sequence_new return a handle even if they fail (unless memory is exhausted), so that
 *     the error message can be read from it. It must be freed like any other.
 *   - Any number of sequences in any threads may share a model, and they keep it alive. Only one thread at a time may
 *     use a sequence; the exception is sf_sequence_stop, which any thread may call before sf_sequence_free.
 *   - sf_spec, sf_backend, sf_sequence_options and sf_options begin with their size, so that fields can be added later:
 *     set it to sizeof. Functions copy them with their strings and lists; the `context` of a backend or constraint must
 *     stay valid until its `release`, and clock_context until sf_sequence_free.
 *   - A relative path is resolved when it is given, so the working directory may change later.
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
  SF_BAD_ARGUMENT = 1,     /* the caller's arguments: ranges, lengths, a null pointer, an unknown name */
  SF_BAD_PROGRAM = 2,      /* a graph file: missing, damaged, or not as docs/contracts.md specifies */
  SF_MISSING_OPERATOR = 3, /* a graph needs an operator or backend that the engine does not contain */
  SF_CONTEXT_FULL = 4,     /* the cache has no room for these rows, or a chat's question does not fit the context */
  SF_NOT_KEPT = 5,         /* a row to commit was pruned, or there was no run to read or commit from */
  SF_EXECUTION = 6,        /* the engine reported an error while running */
  SF_OUT_OF_MEMORY = 7,
  SF_BROKEN = 8,       /* an internal check failed; free this handle */
  SF_BAD_TABLES = 9,   /* the drafting tables contradict themselves or the model */
  SF_BAD_FILE = 10,    /* a bundle, saved session, memory or self-test: missing, damaged, or of another bundle */
  SF_BAD_GRAMMAR = 11, /* a schema or grammar: invalid, not supported, over a limit, or nothing can follow the text */
  SF_CANCELLED = 12,   /* the caller cancelled the call: sf_watch */
  SF_END = 100         /* sf_sequence_next: the text has ended; not an error */
};

/* Progress and cancellation of sf_bundle_open and sf_program_open. `step` is called repeatedly, on the thread of that
 * call. `done` and `total` are bytes in sf_bundle_open and methods in sf_program_open. If `step` returns a value other
 * than 0, the call returns SF_CANCELLED. It must not throw. */
typedef struct sf_watch {
  int (*step)(void* context, uint64_t done, uint64_t total);
  void* context;
} sf_watch;

/* ---- engines ---------------------------------------------------------------------------------------------------- */

/* The results of a pass, without padding. The engine owns the arrays, which are valid until its next run; NULL for an
 * output that the method does not have. */
typedef struct sf_results {
  int64_t survivors; /* K': nodes that the pruner kept */
  int64_t carrying;  /* M': number of survivors with streams; they come first */
  int64_t vocab_size, num_streams, top_k;
  const float* logits;           /* [K', vocab_size]; read only if want_logits was set */
  const int64_t* best;           /* [K'] the most probable next token of each survivor, the smallest id on ties */
  const int64_t* kept;           /* [K'] rows of the tree, in any order, including the root */
  const int64_t* stream_ids;     /* [M', num_streams, top_k] token ids, best first */
  const float* stream_log_probs; /* [M', num_streams, top_k] natural logarithm */
} sf_results;

/* An engine as a table of functions, in the manner of sqlite3_vfs: it runs the methods of a bundle and owns the cache
 * of one sequence. The native engine (kernels/engine) fills the table, or the caller does for an engine of its own.
 * Functions return SF_OK or an error code, whose message `error` returns. They are called on the thread that calls the
 * sequence. */
typedef struct sf_backend {
  size_t size;
  void* context;
  /* One pass over n rows, which the engine pads to the method's size. input_ids [n], position_ids [n], ancestors [n, n]
   * row-major: [i, j] is 1 if row j is on the path from the root to row i, including i itself. Does not change the
   * cache. */
  int (*run)(void* context, const char* method, int32_t n, const int64_t* input_ids, const int64_t* position_ids,
             const uint8_t* ancestors, int32_t want_logits, sf_results* out);
  /* Deferred schedule: computes the streams of one survivor of the last run, given by its index among the survivors,
   * after all rows on its path were committed; only stream_ids and stream_log_probs [1, num_streams, top_k] are read.
   * next_token is the token that the model chose after that node, for streams that are conditioned on it. May be NULL
   * if the bundle has no deferred streams. */
  int (*streams)(void* context, int32_t survivor, int64_t next_token, sf_results* out);
  /* Appends the keys and values of these rows of the last run to the cache, in the order given. */
  int (*commit)(void* context, const int32_t* rows, int32_t n);
  /* Drops cache positions from `length` on. */
  int (*truncate)(void* context, int64_t length);
  /* The message of this engine's last failure. */
  const char* (*error)(void* context);
  /* Frees the engine; called once, by sf_sequence_free or a failing sf_sequence_new. May be NULL. */
  void (*release)(void* context);
  /* Serialize the first `length` cache positions in the engine's own format. `bytes_of` returns their size; `length`
   * may be more than the cache has, up to the capacity, because it is called before `load`. `save` passes them to `put`
   * in order, in parts of any size, and `load` reads them through `get` into an empty cache. If put or get does not
   * return SF_OK, the engine returns that code. After a `load` that fails, `truncate` drops what it has read. NULL if
   * the engine does not support this; then a restored sequence prefills its tokens again. */
  int (*bytes_of)(void* context, int64_t length, uint64_t* bytes);
  int (*save)(void* context, int64_t length, int (*put)(void* to, const void* data, uint64_t bytes), void* to);
  int (*load)(void* context, int64_t length, int (*get)(void* from, void* data, uint64_t bytes), void* from);
  /* Called when generation ends, also by an error, and after passes that measure; the engine may park its worker
   * threads. May be NULL. */
  void (*idle)(void* context);
  /* Returns to the system the memory of the cache, and memory whose contents can be recomputed. The cache is empty when
   * this is called. May be NULL. */
  void (*trim)(void* context);
  /* Sets *longest to the greatest value up to `length` that `truncate` accepts; `length` is at most that of the cache.
   * It is less than `length` if layers with a sliding window, convolution or linear attention have overwritten what the
   * next pass would need. The core then processes the tokens after *longest again. `truncate` must accept 0 at any time, and
   * the length before a commit of one row directly after it. NULL: `truncate` accepts every length. */
  int (*truncatable)(void* context, int64_t length, int64_t* longest);
} sf_backend;

/* ---- bundles ---------------------------------------------------------------------------------------------------- */

typedef struct sf_method {
  const char* name;   /* for example verify_8 */
  int32_t rows, keep; /* nodes per pass, nodes that survive its pruner; 1 <= keep <= rows */
  int32_t carrying;   /* survivors with streams; 0 <= carrying <= keep */
} sf_method;

/* The values of a manifest that the loop needs. */
typedef struct sf_spec {
  size_t size;
  int64_t capacity;     /* context length, in tokens */
  int64_t vocab_size;   /* at most 4,194,304 */
  int64_t num_streams;  /* 0: the bundle has none and drafts by prompt look-up only */
  int64_t top_k;        /* candidates per stream */
  int64_t prefill_rows; /* prompt tokens per prefill pass */
  const sf_method* verify;
  int32_t verify_count;
  int32_t deferred;        /* 1: streams run in a pass of their own, the engine's `streams` */
  const int64_t* stop_ids; /* the model's end-of-sequence tokens */
  int32_t stop_count;
  int32_t stream_vocab_size; /* tokens that streams may propose, listed in the table stream_vocab; 0: not known */
  const char* identity;      /* distinguishes this bundle from others, for example a hash of its files' hashes */
} sf_spec;

/* What a bundle occupies in memory once it is loaded, in bytes, for text/streamfuse_bundle.h and
 * native/streamfuse.h. */
typedef struct sf_estimate {
  size_t size;
  int64_t weights_bytes; /* files of the graphs; they are mapped, so the system can drop pages and read them again */
  int64_t tables_bytes;  /* drafting tables, also mapped */
  int64_t cache_bytes;   /* KV cache of one sequence with a full context, in memory of its own */
} sf_estimate;

enum { SF_F16 = 1, SF_F32 = 2, SF_I32 = 3, SF_I64 = 4 };

/* One drafting table, as stored in the bundle's draft.safetensors (docs/contracts.md). The memory must outlive the
 * model; sf_core_model_open checks every number in it. Unknown names are refused. */
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
/* Never NULL. A copy of the message, which belongs to the calling thread: valid until that thread's next call of this
 * function, for any model, or until it ends. */
SF_EXPORT const char* sf_core_model_error(const sf_core_model*);

/* Enables a memory of answers, shared by all sequences of the model: prompt look-up also drafts from their finished
 * texts. `path` is a file that keeps their token ids between processes, readable by its owner only; NULL: in RAM only.
 * It is created if it is missing, and replaced by an empty one if another bundle wrote it; any other file is
 * SF_BAD_FILE. `tokens` is the capacity, at most 16,777,216; 0 means 65,536 (at most 7 MB of RAM, 0.3 MB on disk). The
 * oldest answers are dropped. Several processes may share the file; an answer that ends while another process holds the
 * file for longer than 2 s is kept in RAM only. Call it before sf_sequence_new. */
SF_EXPORT int sf_core_model_remember(sf_core_model*, const char* path, int64_t tokens);

/* Removes these answers from RAM and empties the file. Answer files beside it that are named FILE.NAME, such as those
 * of a bundle's adapters, belong to it and are emptied too, whoever has them open. Needs no disk space. SF_BAD_FILE,
 * after all files were tried, if one cannot be emptied or the folder cannot be listed. Any thread may call it. */
SF_EXPORT int sf_core_model_forget(sf_core_model*);

/* Adds a stored prefix: a file of sf_sequence_save whose cached tokens prompts may begin with, for example those of a
 * system prompt. sf_sequence_start loads the longest stored prefix of the prompt if it covers more of the prompt than
 * the sequence's own cache. SF_BAD_FILE if the file is missing, damaged or of another bundle; the caller may ignore
 * that, since `prefix_refused` of the statistics has the message. The cache in the file is read only when it is loaded,
 * so the file must not change while the model is open. If it turns out to be damaged or written by another engine,
 * `prefix_refused` has the message, and the prompt is prefilled. Call it before sf_sequence_new. */
SF_EXPORT int sf_core_model_add_prefix(sf_core_model*, const char* path);

/* ---- constraints ------------------------------------------------------------------------------------------------ */

enum {
  SF_MAY_END = 1,      /* the text is complete: it may end here */
  SF_MUST_END = 2,     /* the text is complete, and no token can follow; implies SF_MAY_END */
  SF_UNRESTRICTED = 4, /* every token is allowed here, end tokens only with SF_MAY_END, and none is forced: a grammar
                          that is not active yet */
  SF_MAY_GROW = 8,     /* with SF_MAY_END: more text may change the last value, such as a number's next digit; a limit
                          here means that the text is incomplete */
};

/* A grammar that restricts a text, as a table of functions. sf_text_constrain in text/streamfuse_bundle.h creates one
 * from a JSON schema, a regular expression or a Lark grammar; a caller can also implement it. Its state is the list of
 * accepted tokens, which is empty at first and does not include the prompt. Functions return SF_OK or an error code;
 * `error` returns the message. A function that fails must leave the state unchanged. They are called on the thread that
 * calls the sequence.
 *
 * End tokens (sf_options.stop_ids and, unless ignore_eos is set, the model's own) are allowed where `state` has
 * SF_MAY_END. They are never passed to `accept`, and the results of `allows` and `mask` for them are ignored. If a
 * function fails while drafting, only the draft ends there, because the model may choose another token. If it fails for
 * the token that the model chooses, the text ends before that token with the error. */
typedef struct sf_constraint {
  size_t size;
  void* context;
  /* Appends a token that is allowed. */
  int (*accept)(void* context, int64_t token);
  /* Drops the last `n` accepted tokens. */
  int (*rollback)(void* context, int32_t n);
  /* Sets *state to a combination of these four, or 0. */
  int (*state)(void* context, int32_t* state);
  /* Sets allowed[i] to 1 if tokens[i] may follow, else to 0. Used for a few tokens, for which a mask costs more. */
  int (*allows)(void* context, const int64_t* tokens, int32_t n, uint8_t* allowed);
  /* bits [(vocab_size + 31) / 32]: bit t % 32 of word t / 32 is 1 if token t may follow. */
  int (*mask)(void* context, uint32_t* bits);
  /* Writes the tokens of the only text that can follow, at most `room`, and their number to *n: 0 if there is a choice.
   * They are used as drafts, because the model may choose other tokens for the same text. */
  int (*forced)(void* context, int64_t* tokens, int32_t room, int32_t* n);
  /* Sets *key to a value that is equal for states with the same few continuations, such as all states before a key of
   * an object, or to 0 if almost anything can follow. Tokens that the model chose in a state are drafted in later
   * states with the same key. May be NULL. */
  int (*choice_key)(void* context, uint64_t* key);
  const char* (*error)(void* context);
  void (*release)(void* context); /* frees the constraint; called once */
} sf_constraint;

/* ---- a sequence of tokens ---------------------------------------------------------------------------------------- */

typedef struct sf_sequence_options {
  size_t size;
  double (*clock)(void* context); /* monotonic seconds; NULL: the system's */
  void* clock_context;
  const char* cost_folder; /* where measured pass latencies are kept between processes, a file per bundle and device;
                              NULL: nowhere. The folder is created if it is missing, and may be read-only */
  const char* device;      /* what these latencies depend on: processor, threads, build of the engine */
  double model_load_ms;    /* copied into the statistics */
} sf_sequence_options;

/* The sequence takes ownership of the engine: it calls backend->release when it is freed, or if this call fails.
 * options may be NULL. */
SF_EXPORT int sf_sequence_new(sf_core_model*, const sf_backend* backend, const sf_sequence_options* options,
                              sf_sequence** out);
SF_EXPORT void sf_sequence_free(sf_sequence*);
SF_EXPORT const char* sf_sequence_error(const sf_sequence*); /* never NULL */

enum { SF_TOP_LOG_PROBS = 20 }; /* maximum of sf_options.top_log_probs */

typedef struct sf_options {
  size_t size;
  int64_t max_new_tokens;    /* at least 1 */
  double temperature;        /* 0: greedy */
  int64_t top_k;             /* 0: off */
  double top_p;              /* 1: off */
  double min_p;              /* 0: off */
  double repetition_penalty; /* 1: off */
  uint64_t seed;
  const int64_t* stop_ids; /* in addition to the model's own */
  int32_t stop_count;
  int32_t ignore_eos;              /* 1: the model's end-of-sequence tokens do not end the text */
  int32_t speculative;             /* 0: plain decoding */
  int32_t width;                   /* nodes per verify pass; 0: the planner chooses for each pass, by measured cost */
  const sf_constraint* constraint; /* a grammar for the text; NULL: none. The sequence takes ownership: it calls
                                      release when the text ends or its start fails. The text is the same with and
                                      without drafts here too */
  int32_t sources;   /* enabled sources of drafts, a combination of 1 << SF_STREAMS, 1 << SF_LOOKUP, 1 << SF_TABLE and
                        1 << SF_MEMORY, to measure them; 0: all. A constraint's forced tokens are always drafted */
  int32_t log_probs; /* 1: sf_token.log_prob is computed; the text is the same, but a token costs more time */
  int64_t dropped_turns;  /* for the statistics: the number of turns that were dropped for this text, */
  int64_t dropped_tokens; /* and their length in tokens, both from sf_text_dropped; 0: none */
  int32_t top_log_probs;  /* 0 to SF_TOP_LOG_PROBS: the number of tokens that sf_sequence_top returns; more than 0
                             implies log_probs */
} sf_options;

/* 128 tokens, greedy, speculative, width chosen by the planner. */
SF_EXPORT void sf_default_options(sf_options* out);

/* Finishes a running text, and measures the latency of passes on this device, unless another sequence of this model and
 * device has measured it or the cost file has it, which is then checked in about 50 ms. sf_sequence_start does this if
 * needed. Measuring takes at most about 250 ms or, on slow devices, two runs each of decode, streams and the widest
 * method; sf_sequence_stop ends it after the current pass. Keeps the KV cache unless there is no space for the timing
 * passes. */
SF_EXPORT int sf_sequence_prepare(sf_sequence*);

/* Starts generation after the context ids[0..n): all turns so far, not only the new one. The prefix that is already in
 * the cache is not processed again. Finishes a running text first. options may be NULL. */
SF_EXPORT int sf_sequence_start(sf_sequence*, const int64_t* ids, int64_t n, const sf_options* options);

enum { SF_MODEL = 0, SF_STREAMS = 1, SF_LOOKUP = 2, SF_TABLE = 3, SF_GRAMMAR = 4, SF_MEMORY = 5 };

typedef struct sf_token {
  int64_t id;
  int32_t source; /* what drafted it: SF_MODEL (not drafted), SF_STREAMS, SF_LOOKUP (prompt look-up), SF_TABLE (the
                     n-gram table), SF_GRAMMAR (forced by the constraint, or chosen by the model in an earlier state
                     with the same choice_key), or SF_MEMORY (look-up in earlier answers, if their match is longer
                     than that in this text: sf_core_model_remember) */
  /* Natural logarithm of the model's probability of this token: softmax over the whole vocabulary, before temperature,
   * filters, penalty and constraint. NaN unless log_probs or top_log_probs is set. */
  float log_prob;
} sf_token;

/* What to do if a question does not fit into the context, for text/streamfuse_bundle.h and native/streamfuse.h. */
enum { SF_CONTEXT_FAIL = 0, SF_CONTEXT_DROP_OLDEST = 1 };

/* Channels of an answer, for text/streamfuse_bundle.h and native/streamfuse.h. */
enum { SF_ANSWER = 0, SF_THINKING = 1, SF_TOOL_CALL = 2 };

/* Optional: processes the next part of the prompt, in one pass, so that the caller can show progress or cancel between
 * two calls. Afterwards *read of *total tokens are in the cache (either may be NULL). SF_END once the whole prompt is
 * processed or the text has ended. sf_sequence_next processes the remaining parts. */
SF_EXPORT int sf_sequence_read(sf_sequence*, int64_t* read, int64_t* total);

/* The next token. SF_END when the text has ended: at a stop token (not delivered), where the constraint allows no
 * further token, at max_new_tokens, a full context, or sf_sequence_stop. Between two calls the cache matches the
 * delivered tokens. */
SF_EXPORT int sf_sequence_next(sf_sequence*, sf_token* out);

typedef struct sf_top_token {
  int64_t id;
  float log_prob; /* as in sf_token */
  int32_t reserved;
} sf_top_token;

/* The most probable tokens at the position of the last one, best first, ties by the smaller id. Returns their number,
 * and in `out` an array that is valid until the next call on this sequence; 0 before the first token, or without
 * sf_options.top_log_probs. A token that was sampled or constrained need not be among them. */
SF_EXPORT int32_t sf_sequence_top(const sf_sequence*, const sf_top_token** out);

/* Scores given tokens: how probable the model finds each of ids[from..n) after all tokens before it, 1 <= from < n.
 * log_probs [n - from] are natural logarithms as in sf_token; on a row-invariant engine, the bits of a generated text.
 * top [n - from, top_count], NULL if top_count is 0, receives the most probable tokens at each position, ordered as in
 * sf_sequence_top; top_count is at most SF_TOP_LOG_PROBS and the vocabulary's size. Finishes a running text first; then
 * the tokens of the sequence are ids, all but the last of them in the cache. The prefix of ids[0..from - 1) that is in
 * the cache already is not processed again. sf_sequence_stop makes it return SF_CANCELLED after the current pass. The
 * statistics stay those of the last text. */
SF_EXPORT int sf_sequence_score(sf_sequence*, const int64_t* ids, int64_t n, int64_t from, int32_t top_count,
                                float* log_probs, sf_top_token* top);

/* Ends the text after the tokens delivered so far and discards what was computed beyond them. `reason` is the finish
 * reason in the statistics: "stop" (a stop string) or "stopped" (NULL means this). No effect if no text runs. */
SF_EXPORT int sf_sequence_finish(sf_sequence*, const char* reason);

/* Ends the running text, or the one that sf_sequence_start is starting, at its next token; later texts are unaffected.
 * Any thread may call it. */
SF_EXPORT void sf_sequence_stop(sf_sequence*);

/* Drops all tokens, and the tokens remembered for a constraint's choice_key. Measured pass latencies are kept. */
SF_EXPORT int sf_sequence_reset(sf_sequence*);

/* Drops the KV cache and returns its memory to the system; the tokens stay, and the next text processes them again.
 * Finishes a running text. */
SF_EXPORT int sf_sequence_trim(sf_sequence*);

/* The context and all tokens delivered after it, valid until the next call; the cache holds the first `cached`. */
SF_EXPORT int sf_sequence_tokens(sf_sequence*, const int64_t** ids, int64_t* n, int64_t* cached);

/* One JSON object about the last text, keys as in docs/runtime.md; valid until the next call on this sequence. NULL
 * if memory is exhausted. */
SF_EXPORT const char* sf_sequence_statistics(sf_sequence*);

/* How the last text ended: "stop", "length", "context", "incomplete" (a limit came before the constraint's end) or
 * "stopped", as in the statistics. Valid until the next call. */
SF_EXPORT const char* sf_sequence_finish_reason(const sf_sequence*);

/* Save tokens, cache and a note of the caller (any bytes; NULL and 0: none) to a file, atomically, and restore them. A
 * damaged file, or one of another bundle or version, is refused, and the sequence is unchanged. A valid file's note is
 * passed to `take` (may be NULL) before anything changes: if it returns a code other than SF_OK, the file is refused
 * with that code. The note is valid only during that call. A cache that cannot be loaded is SF_EXECUTION, or the
 * engine's own code, and leaves the sequence empty. Both finish a running text. */
SF_EXPORT int sf_sequence_save(sf_sequence*, const char* path, const void* note, size_t note_bytes);
SF_EXPORT int sf_sequence_restore(sf_sequence*, const char* path,
                                  int (*take)(void* context, const void* note, size_t bytes), void* context);

#ifdef __cplusplus
}
#endif
#endif
