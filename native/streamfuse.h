/* streamfuse: opens a bundle that `streamfuse export` wrote, and answers in pieces of text. The one header that an app
 * binds; Kotlin's and Swift's libraries are thin over it. docs/native.md has a program of fifteen lines.
 *
 *     sf_model* model;                                          // an open bundle
 *     if (sf_model_load("build/demo", NULL, &model)) die(sf_model_error(model));
 *     sf_session* chat;                                         // a conversation with a cache of its own
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
 *     streamfuse_core.h. The sentence of the last error stays on the handle until its next failing call.
 *   - sf_model_load, sf_chat_new and sf_completion_new give a handle also where they fail (unless memory is out), so
 * that it can say why; it must be freed like any other.
 *   - A model may be used by any threads. A session is used by one thread at a time, but for sf_session_stop, which any
 *     thread may call at any time before sf_session_free. Models and sessions are freed in any order.
 *   - Nothing calls back: the caller asks for the next piece, and nothing is computed between two calls.
 *   - Text is UTF-8 with its length in bytes and may hold zero bytes; lists are JSON. What is handed out belongs to the
 *     handle: a model's as long as the model, a session's until the next call on that session.
 *   - Structures of options begin with their size, so that they can grow: use the function that fills in the defaults,
 *     or set size to sizeof and the rest to zero, which means the defaults too.
 *   - No function throws, aborts, prints, or depends on the locale.
 */
#ifndef STREAMFUSE_H
#define STREAMFUSE_H

#include "streamfuse_core.h" /* codes of errors, sf_options, sf_spec, and sf_backend for an engine of one's own */

#ifdef __cplusplus
extern "C" {
#endif

#define SF_VERSION "0.1.0"
#define SF_ABI_VERSION 1 /* changes where a program must be compiled anew */

/* Those of the library that is loaded. */
SF_EXPORT const char* sf_version(void);
SF_EXPORT int32_t sf_abi_version(void);

/* ---- a model: a bundle that is open ------------------------------------------------------------------------------ */

typedef struct sf_model sf_model;
typedef struct sf_session sf_session;

typedef struct sf_model_options {
  size_t size;
  int32_t threads;        /* of the native engine; 0: chosen for this machine */
  int32_t skip_hashes;    /* 1: the bundle was checked when it was installed; its SHA-256 sums are not compared again */
  int32_t own_engine;     /* 1: no graph is loaded; each session brings an engine (sf_session_options.backend) */
  const char* public_key; /* what `streamfuse bundle keygen` wrote, 64 hexadecimal digits: a bundle that this key did not sign is
                             refused, and hashes are compared; NULL: nobody asks who wrote the bundle */
  const char* cost_folder; /* where the measured latency of passes is kept between processes, a file per bundle and
                              device; NULL: nowhere. It is made, and may be read-only */
} sf_model_options;

/* Opens and checks the bundle in `folder`, and loads its graphs: from a tenth of a second to some seconds. options may
 * be NULL. SF_BAD_FILE, SF_BAD_TABLES and SF_BAD_PROGRAM name file and field. */
SF_EXPORT int sf_model_load(const char* folder, const sf_model_options* options, sf_model** out);
SF_EXPORT void sf_model_free(sf_model*);
SF_EXPORT const char* sf_model_error(const sf_model*); /* never NULL */

SF_EXPORT const char* sf_model_manifest(const sf_model*); /* the JSON text, as it lies in the bundle */
SF_EXPORT const char* sf_model_graph(const sf_model*);    /* where the graphs are, for an engine of one's own */
SF_EXPORT const char* sf_model_engine(const sf_model*);   /* the native engine's description, JSON: threads,
                                                             instruction_set, cache_bytes, ...; {} where it has none */
SF_EXPORT int32_t sf_model_can_chat(const sf_model*);     /* 1: there is a chat template */
SF_EXPORT double sf_model_load_ms(const sf_model*);       /* how long sf_model_load ran */

/* The facts of the bundle; what it points to lives as long as the model. `out->size` is set by the caller. */
SF_EXPORT int sf_model_spec(const sf_model*, sf_spec* out);

/* What an answer takes that is asked for without options: sf_default_options with the bundle's sampling defaults.
 * `out->size` is set by the caller. */
SF_EXPORT int sf_model_default_options(const sf_model*, sf_options* out);

/* Which backends of bundles the native engine can run on this device, JSON: {name: null, or the sentence that says why
 * not}. NULL where memory is out. */
SF_EXPORT const char* sf_backends(void);

/* ---- a session: a chat, or a completion -------------------------------------------------------------------------- */

typedef struct sf_session_options {
  size_t size;
  const char* system; /* a chat's instructions, which stay through sf_session_reset; NULL: none */
  size_t system_bytes;
  const char* history; /* a chat's earlier turns, which stay too: a JSON list of {"role": ..., "content": ...}; NULL */
  size_t history_bytes;
  const sf_backend* backend; /* an engine of one's own, which the session takes and releases, also where making the
                                session fails; NULL: the model's */
  const char* device;    /* of that engine: what makes a pass cost differently, besides the machine; NULL: nothing */
  double engine_load_ms; /* of that engine; the statistics add it to sf_model_load_ms */
} sf_session_options;

/* A conversation: each start is a turn of the user, and only new words are read. SF_BAD_ARGUMENT where the bundle has
 * no chat template. options may be NULL. */
SF_EXPORT int sf_chat_new(sf_model*, const sf_session_options* options, sf_session** out);

/* Plain text that is continued, without a chat template. Each prompt stands alone; what it shares with the text before
 * it, from the beginning on, is not read again. */
SF_EXPORT int sf_completion_new(sf_model*, const sf_session_options* options, sf_session** out);
SF_EXPORT void sf_session_free(sf_session*);
SF_EXPORT const char* sf_session_error(const sf_session*); /* never NULL */

/* Measures the latency of passes on this device, unless it is known, so that the first answer need not: about 250 ms.
 */
SF_EXPORT int sf_session_prepare(sf_session*);

typedef struct sf_answer_options {
  size_t size;
  const sf_options* sampling; /* NULL: sf_model_default_options */
  const char* stops;          /* strings that end the answer and are not shown: a JSON list; NULL: none */
  size_t stops_bytes;
} sf_answer_options;

/* Starts an answer: to the user's next turn, or after a prompt. An answer that still runs is finished. A refused
 * request changes nothing else. options may be NULL. */
SF_EXPORT int sf_session_start(sf_session*, const char* text, size_t bytes, const sf_answer_options* options);

/* Reads the next part of the prompt, in one pass; SF_END once all of it is read, or the answer has ended. *read of
 * *total tokens are in the cache then (either may be NULL). It need not be called, since sf_session_next reads what is
 * left; it shows progress, and between two calls the answer can be finished. */
SF_EXPORT int sf_session_read(sf_session*, int64_t* read, int64_t* total);

typedef struct sf_piece {
  const char* text; /* what this token completes: often nothing, never part of a character; no zero byte closes it */
  size_t bytes;
  int64_t token;  /* its id; -1 in a last piece that is only text: it might have become a stop string */
  int32_t source; /* who drafted the token: SF_MODEL (nobody), SF_STREAMS, SF_LOOKUP, SF_TABLE */
  int32_t reserved;
} sf_piece;

/* The next piece. SF_END where the answer has ended, or there is none. */
SF_EXPORT int sf_session_next(sf_session*, sf_piece* out);

/* Ends the answer at its next token, also while its prompt is read. Any thread may call it. What was delivered counts,
 * and a question that nothing was delivered to is forgotten. Nothing is remembered where no answer runs. */
SF_EXPORT void sf_session_stop(sf_session*);

/* Ends the answer now, likewise; text that was held back is the next piece. */
SF_EXPORT int sf_session_finish(sf_session*);

/* What the last answer took: one JSON object, keys as in docs/runtime.md. NULL where memory is out. */
SF_EXPORT const char* sf_session_statistics(sf_session*);

/* The turns so far, a JSON list; the answer that is being written comes when it ends. */
SF_EXPORT int sf_session_messages(sf_session*, const char** json, size_t* bytes);

/* The last context and all tokens delivered after it; the cache holds the first `cached`. */
SF_EXPORT int sf_session_tokens(sf_session*, const int64_t** ids, int64_t* n, int64_t* cached);

/* Forgets all tokens, and all turns but those that the session was made with. An answer that runs is finished. */
SF_EXPORT int sf_session_reset(sf_session*);

/* Writes cache, tokens and conversation to a file, in one piece or not at all; takes them back, with the same bundle,
 * in this process or another, or in another language. SF_BAD_FILE for a damaged or foreign file, or one that a chat
 * cannot go on from: the session is as before. An answer that runs is finished. */
SF_EXPORT int sf_session_save(sf_session*, const char* path);
SF_EXPORT int sf_session_restore(sf_session*, const char* path);

#ifdef __cplusplus
}
#endif
#endif
