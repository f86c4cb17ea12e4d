/* streamfuse: opens a bundle that `streamfuse export` wrote, and generates text piece by piece. This is the only header
 * that an app needs; the Kotlin and Swift libraries are thin wrappers over it. docs/core.md has a complete program.
 *
 *     sf_model* model;                                          // an open bundle
 *     if (sf_model_load("build/demo", NULL, &model)) die(sf_model_error(model));
 *     sf_session* chat;                                         // a conversation, with its own KV cache
 *     if (sf_chat_new(model, NULL, &chat)) die(sf_session_error(chat));
 *     if (sf_session_start(chat, question, strlen(question), NULL)) die(sf_session_error(chat));
 *     sf_piece piece;
 *     while ((code = sf_session_next(chat, &piece)) == SF_OK) fwrite(piece.text, 1, piece.bytes, stdout);
 *     if (code != SF_END) die(sf_session_error(chat));
 *     puts(sf_session_statistics(chat));
 *     sf_session_free(chat);
 *     sf_model_free(model);
 *
 * Rules
 *   - Functions that return int return SF_OK, SF_END (sf_session_next and sf_session_read only) or an error code of
 *     streamfuse_core.h. The message of the last error stays on the handle until its next failing call.
 *   - sf_model_load, sf_chat_new and sf_completion_new return a handle even if they fail (unless memory is exhausted),
 *     so that the error message can be read from it. It must be freed like any other.
 *   - Any thread may use a model. Only one thread at a time may use a session; the exception is sf_session_stop, which
 *     any thread may call before sf_session_free. Models and sessions may be freed in any order.
 *   - There are no callbacks: the caller asks for the next piece, and nothing is computed between two calls. The
 *     progress of a long call is read from another thread (sf_progress).
 *   - Text is UTF-8 with a length in bytes and may contain zero bytes; lists are JSON. Returned pointers belong to the
 *     handle: those of a model are valid as long as the model, those of a session until the next call on that
 *     session. The message of sf_model_error belongs to the calling thread.
 *   - Option structures begin with their size, so that fields can be added later: set `size` to sizeof and every other
 *     field to zero for the defaults. The exception is sf_options, where zero is not the default: fill it with
 *     sf_model_default_options (or sf_default_options), then change fields. Functions copy options, strings and lists;
 *     the `context` of a backend or constraint must stay valid until its `release`.
 *   - A relative path is resolved when it is given, so the working directory may change later.
 *   - No function throws, aborts, prints, or depends on the locale.
 */
#ifndef STREAMFUSE_H
#define STREAMFUSE_H

#include "streamfuse_core.h" /* error codes, sf_options, sf_spec, and sf_backend for a custom engine */

#ifdef __cplusplus
extern "C" {
#endif

#define SF_VERSION "0.1.0"
#define SF_ABI_VERSION 2 /* changes whenever programs must be recompiled */

/* Of the loaded library, to compare with SF_VERSION and SF_ABI_VERSION. */
SF_EXPORT const char* sf_version(void);
SF_EXPORT int32_t sf_abi_version(void);

/* ---- model: an open bundle --------------------------------------------------------------------------------------- */

typedef struct sf_model sf_model;
typedef struct sf_session sf_session;

/* The progress of one sf_model_load, which other threads may read and cancel while it runs. It is polled: a callback
 * would run on the loading thread, where a language binding would have to attach the thread and could not throw
 * exceptions through C. Free it after sf_model_load has returned. */
typedef struct sf_progress sf_progress;

SF_EXPORT sf_progress* sf_progress_new(void); /* NULL if memory is exhausted */
SF_EXPORT void sf_progress_free(sf_progress*);

/* From 0 to 1, never decreasing; 1 once the model is loaded. Hashing files is the first half and loading graphs the
 * second; a load that does only one of the two has the whole range for it. With own_engine 2 it stops after the first
 * half if the bundle is for Core ML or ONNX Runtime; the caller then loads the graphs. */
SF_EXPORT double sf_progress_fraction(const sf_progress*);

/* Makes sf_model_load return SF_CANCELLED, at the latest after 1 MB more of hashing or one more graph. */
SF_EXPORT void sf_progress_cancel(sf_progress*);

typedef struct sf_model_options {
  size_t size;
  int32_t threads;         /* of the native engine; 0: chosen for this machine. sf_model_engine reports the number in
                              use. It may differ for an XNNPACK bundle: all of them share one thread pool, sized by
                              the first that is open. The delegates of QNN, OpenVINO and Vulkan choose their own
                              number; there it is ignored */
  int32_t skip_hashes;     /* 1: do not compare SHA-256 sums, for a bundle that was checked when it was installed */
  int32_t own_engine;      /* 1: load no graphs; each session has an engine of the caller (sf_session_options.backend);
                              2: the same, but only if the bundle is for Core ML or ONNX Runtime. A .pte that
                              needs what this library does not include fails with SF_MISSING_OPERATOR */
  const char* public_key;  /* a key from `streamfuse bundle keygen`, 64 hexadecimal digits: refuse a bundle that is not
                              signed with it, and compare hashes even with skip_hashes; NULL: no signature is needed */
  const char* cost_folder; /* where the measured latency of passes is kept between processes, a file per bundle and
                              device; NULL: nowhere. The folder is created if it is missing, and may be read-only */
  const char* memory_file; /* file that stores answers as token ids, readable by its owner only, so that later answers
                              are drafted from them; created if it is missing. Adapters have files of their own,
                              FILE.NAME. sf_model_forget empties every such file, so give no other model's file
                              such a name. "": in RAM only. NULL: off */
  int64_t memory_tokens;   /* its capacity in tokens; the oldest answers are dropped. 0: 65,536 (0.3 MB on disk) */
  sf_progress* progress;   /* NULL: none */
} sf_model_options;

/* Opens and checks the bundle in `folder` and loads its graphs, which takes 0.1 s to several seconds. options may be
 * NULL. The message of SF_BAD_FILE, SF_BAD_TABLES and SF_BAD_PROGRAM names file and field. */
SF_EXPORT int sf_model_load(const char* folder, const sf_model_options* options, sf_model** out);
SF_EXPORT void sf_model_free(sf_model*);

/* What the bundle in `folder` occupies in memory once it is loaded: the weights and drafting tables, which are mapped,
 * and the KV cache of each session. Only its manifest is read. The caller sets `out->size`. The message of SF_BAD_FILE
 * or SF_BAD_ARGUMENT is written to `message`, null-terminated and truncated to `capacity` bytes. */
SF_EXPORT int sf_model_estimate(const char* folder, sf_estimate* out, char* message, size_t capacity);

/* Checks manifest.json in `folder` and, unless public_key is NULL, that manifest.sig is a signature of it by this key.
 * No other file needs to exist, so a download can call it before it requests the files that the manifest lists. The
 * message of SF_BAD_FILE or SF_BAD_ARGUMENT is written to `message`, null-terminated and truncated to `capacity`
 * bytes. */
SF_EXPORT int sf_model_verify_manifest(const char* folder, const char* public_key, char* message, size_t capacity);

/* Never NULL. A copy of the message, which belongs to the calling thread: valid until that thread's next call of any
 * function with any model, or until it ends. If several threads use the model, it may be that of another thread's
 * failure. */
SF_EXPORT const char* sf_model_error(const sf_model*);

SF_EXPORT const char* sf_model_manifest(const sf_model*); /* the JSON text of manifest.json */
SF_EXPORT const char* sf_model_graph(const sf_model*);    /* the path of the graphs, for a custom engine */
SF_EXPORT const char* sf_model_engine(const sf_model*);   /* the native engine's properties, JSON: threads,
                                                             instruction_set, cache_bytes, ...; {} without one */
SF_EXPORT const char* sf_model_adapter_name(const sf_model*, int32_t index); /* NULL after the last task adapter */
SF_EXPORT int32_t sf_model_can_chat(const sf_model*);                        /* 1: the bundle has a chat template */
SF_EXPORT double sf_model_load_ms(const sf_model*);                          /* duration of sf_model_load */

/* Deletes all answers that sf_model_options.memory_file stores, from RAM and from disk, including those of adapters,
 * loaded or not, and of adapters that an earlier version of the bundle had. It needs no space on the disk. SF_BAD_FILE,
 * after all files were tried, if one cannot be emptied. Any thread may call it, at any time. */
SF_EXPORT int sf_model_forget(sf_model*);

/* The specification of the bundle; its pointers are valid as long as the model. The caller sets `out->size`. */
SF_EXPORT int sf_model_spec(const sf_model*, sf_spec* out);

/* The options used if an answer is started without options: sf_default_options with the bundle's sampling defaults. The
 * caller sets `out->size`. */
SF_EXPORT int sf_model_default_options(const sf_model*, sf_options* out);

/* The number of tokens of a text as part of a chat message, without the tokens that the chat template adds. If the
 * bundle has no chat template: as part of a raw prompt, without special tokens such as BOS. Any thread may call it. */
SF_EXPORT int sf_model_count_tokens(sf_model*, const char* text, size_t bytes, int64_t* n);

/* Repeats the passes of the bundle's self-test on this device, and compares the outputs with those that the exporter
 * stored. It creates an engine of its own, which needs as much memory as a session, and takes 0.5 s to several seconds.
 * *json is the report (docs/bundle.md, "The self-test"), valid until the next call; only one thread at a time may call
 * it. `backend` is as in sf_session_options: NULL for the model's engine. SF_BAD_FILE if the bundle has no self-test,
 * or it is damaged. Outputs that differ are reported in *json; the call then still returns SF_OK. */
SF_EXPORT int sf_model_self_test(sf_model*, const sf_backend* backend, const char** json);

/* The backends that the native engine supports on this device: a JSON object from names to null if the backend is
 * available, otherwise to the reason why not. Valid as long as the process; NULL if memory is exhausted. */
SF_EXPORT const char* sf_backends(void);

/* ---- session: a chat or a completion ----------------------------------------------------------------------------- */

typedef struct sf_session_options {
  size_t size;
  const char* system; /* a chat's system message, kept by sf_session_reset; NULL: none */
  size_t system_bytes;
  const char* history; /* a chat's earlier turns, also kept: a JSON list of {"role": ..., "content": ...}; NULL:
                          none */
  size_t history_bytes;
  const sf_backend* backend; /* a custom engine, which the session owns and releases, even if the session cannot
                                be created; NULL: the model's engine */
  const char* device;        /* of that engine: its settings that affect latency, such as processor and threads, to tell
                                measured latencies apart; NULL: "own engine" */
  double engine_load_ms;     /* of that engine; added to sf_model_load_ms in the statistics */
  const char* tools;         /* functions that the model may call in a chat: a JSON list in OpenAI's format, {"type":
                                "function", "function": {"name", "description", "parameters"}}, or a list of only the
                                function objects; NULL: none */
  size_t tools_bytes;
  const char* template_variables; /* of the chat template, as in transformers' apply_chat_template: a JSON object such
                                     as {"enable_thinking": false}, which may include `documents`; NULL: none */
  size_t template_variables_bytes;
  int32_t context_policy; /* of a chat, for a question that does not fit into the context: SF_CONTEXT_FAIL (0) or
                             SF_CONTEXT_DROP_OLDEST */
  const char* adapter; /* the name of a task adapter of the bundle (sf_model_adapter_name), null-terminated; its graphs
                          are loaded with its first session. SF_BAD_ARGUMENT if there is none of this name, if
                          `backend` is set, or if the model has no native engine (own_engine). NULL: the base model */
} sf_session_options;

/* A conversation: each start is a turn of the user, and only new tokens are processed. SF_BAD_ARGUMENT if the bundle
 * has no chat template. options may be NULL.
 *
 * A question that does not fit into the context is refused with SF_CONTEXT_FULL. With SF_CONTEXT_DROP_OLDEST the oldest
 * turns are dropped, no more than needed to leave max_new_tokens for the answer (a quarter of the context if
 * max_new_tokens is not smaller than the context), and the others are prefilled again. A turn is a question with all
 * that follows it: the answer, tool calls and results. The system message and the tools are kept. sf_session_messages
 * does not return dropped turns. SF_CONTEXT_FULL then means that the question does not fit even without the other
 * turns. */
SF_EXPORT int sf_chat_new(sf_model*, const sf_session_options* options, sf_session** out);

/* Continues plain text, without a chat template. Prompts are independent; the prefix that a prompt shares with the
 * cached tokens is not processed again. */
SF_EXPORT int sf_completion_new(sf_model*, const sf_session_options* options, sf_session** out);
SF_EXPORT void sf_session_free(sf_session*);
SF_EXPORT const char* sf_session_error(const sf_session*); /* never NULL */

/* Finishes a running answer, and measures the latency of passes on this device, unless it is known. Takes about
 * 250 ms, longer on slow devices; without it, the first answer takes that much longer. */
SF_EXPORT int sf_session_prepare(sf_session*);

typedef struct sf_answer_options {
  size_t size;
  const sf_options* sampling; /* NULL: sf_model_default_options. If it has a `constraint`, every piece is in the channel
                                 SF_ANSWER */
  const char* stops;          /* stop strings, which end the answer and are not part of it: a JSON list; NULL: none */
  size_t stops_bytes;
  const char* schema; /* the answer is JSON that this JSON schema accepts; NULL: any text. At most one of schema, regex,
                         grammar and sampling->constraint may be set; docs/structured.md */
  size_t schema_bytes;
  const char* regex; /* the whole answer matches this regular expression */
  size_t regex_bytes;
  const char* grammar; /* the answer derives from this grammar, in Lark's syntax */
  size_t grammar_bytes;
  const char* tool_choice; /* "auto": any text, in which calls match the tools' parameters; "none": text without calls;
                              "required", or the name of a function: one call. With schema, regex or grammar, "auto"
                              means an answer that fits it, or one call, and only "none" may be set otherwise; with
                              sampling->constraint only "none". Null-terminated. NULL: "auto" if the session
                              has tools and the answer no other constraint */
} sf_answer_options;

/* Starts the answer to the user's next turn in a chat, or the continuation of a prompt. Finishes a running answer
 * first. If it fails, the session is otherwise unchanged. options may be NULL. With an automatic
 * width (sf_options.width 0) and unknown latency, it first does what sf_session_prepare does. */
SF_EXPORT int sf_session_start(sf_session*, const char* text, size_t bytes, const sf_answer_options* options);

/* The tool calls of the last answer: a JSON list of {"id": ..., "name": ..., "arguments": {...}}, [] if it has none. A
 * call that cannot be parsed is part of the text. */
SF_EXPORT int sf_session_tool_calls(sf_session*, const char** json, size_t* bytes);

/* Sends the results of these calls and starts the next answer. results: a JSON list of {"tool_call_id": ..., "content":
 * ...}. The function's "name" can replace the id; without either, results are in the order of the calls. In all other
 * respects this is sf_session_start. */
SF_EXPORT int sf_session_start_tool_results(sf_session*, const char* results, size_t bytes,
                                            const sf_answer_options* options);

/* Starts a completion after the tokens ids[0..n), which are the whole context. The text continues the text of these
 * tokens. */
SF_EXPORT int sf_session_start_tokens(sf_session*, const int64_t* ids, int64_t n, const sf_answer_options* options);

/* Computes the log-probabilities of a given answer to the user's next message in a chat, or of a given continuation of
 * a text in a completion, without generating it: for example to choose the most probable of several. (*log_probs)[i],
 * i < *n, is the natural logarithm of the probability of the answer's token i given all tokens before it, as in
 * sf_piece; the array is valid until the next call on this session. No end token is scored. A completion encodes text
 * and answer together and scores from the first token that differs from those of the text alone, so begin the answer
 * with the space that separates them. Ends an answer in progress and keeps its turn; nothing else changes in the
 * conversation. Answers to the same text share its prefill. SF_BAD_ARGUMENT if the answer is empty or text and answer
 * do not fit into the context; SF_CONTEXT_FULL if a chat's question does not fit; SF_CANCELLED after sf_session_stop.
 */
SF_EXPORT int sf_session_score(sf_session*, const char* text, size_t bytes, const char* answer, size_t answer_bytes,
                               const float** log_probs, int64_t* n);

/* Optional: processes the next part of the prompt, in one pass, so that the caller can show progress or cancel between
 * two calls. Afterwards *read of *total tokens are in the cache (either may be NULL). SF_END once the whole prompt is
 * processed or the answer has ended. sf_session_next processes the remaining parts. */
SF_EXPORT int sf_session_read(sf_session*, int64_t* read, int64_t* total);

typedef struct sf_piece {
  const char* text; /* the text that this token completes: whole characters, often empty; not null-terminated */
  size_t bytes;
  int64_t token;   /* its id; -1 in a piece of text that was held back as a possible stop string or tag */
  int32_t source;  /* what drafted the token: SF_MODEL (nothing), SF_STREAMS, SF_LOOKUP, SF_TABLE, SF_GRAMMAR,
                      SF_MEMORY */
  int32_t channel; /* SF_ANSWER, SF_THINKING (between tags such as <think> and </think>) or SF_TOOL_CALL. Pieces do
                      not contain the tags; sf_session_messages does. A token that completes only a tag of thinking
                      is SF_THINKING */
  float log_prob;  /* as in sf_token; NaN in a piece without a token */
} sf_piece;

/* The next piece. SF_END when the answer has ended, or if none was started. */
SF_EXPORT int sf_session_next(sf_session*, sf_piece* out);

typedef struct sf_top_piece {
  const char* text; /* the token's bytes, possibly part of a character; for a special token, its name */
  size_t bytes;
  int64_t token;
  float log_prob; /* as in sf_token */
  int32_t reserved;
} sf_top_piece;

/* The most probable tokens at the position of the last piece's token, best first (sf_sequence_top), valid until the
 * next call on this session; *n is 0 for a piece without a token, or without sf_options.top_log_probs. */
SF_EXPORT int sf_session_top(sf_session*, const sf_top_piece** out, int32_t* n);

/* Ends the running answer, or the one that a call is starting, at its next token or during its prompt. Any thread may
 * call it. Delivered text stays in the conversation; if nothing was delivered, the question is dropped. No effect if no
 * answer runs or starts. */
SF_EXPORT void sf_session_stop(sf_session*);

/* Like sf_session_stop, but ends the answer now; text that was held back is the next piece. */
SF_EXPORT int sf_session_finish(sf_session*);

/* Statistics of the last answer: one JSON object, keys as in docs/runtime.md. NULL if memory is exhausted. */
SF_EXPORT const char* sf_session_statistics(sf_session*);

/* The turns so far, a JSON list; a running answer is added when it ends. */
SF_EXPORT int sf_session_messages(sf_session*, const char** json, size_t* bytes);

/* The last context and all tokens delivered after it. The first `cached` of them are in the KV cache. */
SF_EXPORT int sf_session_tokens(sf_session*, const int64_t** ids, int64_t* n, int64_t* cached);

/* The number of tokens that the last prompt and its answer use of the context, and the number that is left. Before the
 * first prompt: 0 and the whole context. */
SF_EXPORT int64_t sf_session_used_tokens(sf_session*);
SF_EXPORT int64_t sf_session_remaining_tokens(sf_session*);

/* Drops the KV cache and returns its memory to the system, for an idle session when memory is low. The conversation
 * stays, and the next prompt processes it again. Finishes a running answer. */
SF_EXPORT int sf_session_trim(sf_session*);

/* Drops all tokens, and all turns except those that the session was created with. Finishes a running answer. */
SF_EXPORT int sf_session_reset(sf_session*);

/* Save cache, tokens and conversation to a file, atomically, and restore them with the same bundle and adapter, also in
 * another process or language. SF_BAD_FILE for a damaged file, one of another bundle or adapter, or one from which a
 * chat cannot continue; then the session is unchanged. If the cache cannot be loaded (SF_EXECUTION or the engine's
 * code), only the cache is lost: the next prompt processes the conversation again. Both finish a running answer. */
SF_EXPORT int sf_session_save(sf_session*, const char* path);
SF_EXPORT int sf_session_restore(sf_session*, const char* path);

#ifdef __cplusplus
}
#endif
#endif
