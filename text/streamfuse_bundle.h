/* Bundles and text: opens and checks a bundle folder, reads the specification and drafting tables that the core needs,
 * converts text to tokens and back, renders the chat template and keeps the messages of a conversation. Written in
 * Rust. core/streamfuse_core.h is the decoding loop; an app uses native/streamfuse.h, which combines the two.
 *
 *     sf_bundle* bundle;
 *     if (sf_bundle_open("build/demo", NULL, &bundle)) die(sf_bundle_error(bundle));
 *     sf_spec spec = {.size = sizeof spec};
 *     sf_bundle_spec(bundle, &spec);                       // and sf_bundle_tensors, for sf_core_model_open
 *     sf_text* text;
 *     sf_new_text(bundle, &text);
 *     sf_text_ask(text, "Why is the sky blue?", 20, &ids, &n);   // for sf_sequence_start
 *     sf_text_begin(text, NULL, 0, NULL, 0, NULL, 0);
 *     while (sf_sequence_next(sequence, &token) == SF_OK) {
 *       int code = sf_text_push(text, token.id, &parts, &count);
 *       for (int i = 0; i < count; ++i) fwrite(parts[i].text, 1, parts[i].bytes, stdout);
 *       if (code == SF_END) sf_sequence_finish(sequence, "stop");    // a stop string is complete
 *     }
 *     sf_text_end(text, 0, &parts, &count);
 *
 * Rules, as in core/streamfuse_core.h
 *   - Functions that return int return SF_OK, SF_END (sf_text_push only) or an error code. The message of the last
 *     error stays on the handle; a bundle has only the message of opening it.
 *   - sf_bundle_open, sf_bundle_adapter, sf_bundle_selftest_open, sf_new_text, sf_text_open and sf_text_clone return a
 *     handle even if they fail (unless memory is exhausted), so that the error message can be read from it. It must be
 *     freed like any other.
 *   - A bundle is immutable, and any thread may use it. Only one thread at a time may use a text. Texts keep their
 *     bundle alive.
 *   - Text is UTF-8 with a length in bytes and may contain zero bytes; lists are JSON. Parameters without a length are
 *     null-terminated strings. Returned pointers belong to the handle: those of a bundle are valid as long as the
 *     bundle, those of a text until the next call on that text. Functions copy strings that are passed to them.
 *   - No function throws, prints, leaves a thread running, or depends on the locale. The process aborts only if memory
 *     is exhausted.
 */
#ifndef STREAMFUSE_BUNDLE_H
#define STREAMFUSE_BUNDLE_H

#include "streamfuse_core.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct sf_bundle sf_bundle;
typedef struct sf_text sf_text;

typedef struct sf_bundle_options {
  size_t size;
  const char* public_key; /* the line that `streamfuse bundle keygen` prints, 64 hexadecimal digits: manifest.sig must
                             be a signature of manifest.json by this key, and hashes are compared even with skip_hashes;
                             NULL: no signature is needed */
  const sf_watch* watch;  /* progress in bytes hashed; NULL: none */
  int32_t skip_hashes;    /* 1: SHA-256 sums are not compared, for a bundle that was checked when it was installed */
} sf_bundle_options;

/* Reads and checks a bundle folder: the manifest, names, sizes, hashes, the drafting tables, tokenizer and chat
 * template. options may be NULL. The message of SF_BAD_FILE or SF_BAD_TABLES is one line that names file and field.
 * SF_BAD_ARGUMENT if public_key is not a key; SF_BAD_FILE if the signature is missing, damaged or by another key. */
SF_EXPORT int sf_bundle_open(const char* folder, const sf_bundle_options* options, sf_bundle** out);

/* The name of a task adapter, in the order of the manifest, valid as long as the handle; NULL after the last. */
SF_EXPORT const char* sf_bundle_adapter_name(const sf_bundle*, int32_t index);

/* The bundle with one of its adapters: a handle of its own whose specification, drafting tables, chat template and
 * identity are those of the adapter. sf_bundle_manifest then returns the manifest with the adapter's fields in place of
 * the bundle's. If there is no such adapter, SF_BAD_ARGUMENT, and the message lists the names. Either handle may be
 * closed first. */
SF_EXPORT int sf_bundle_adapter(const sf_bundle*, const char* name, sf_bundle** out);

/* The path of a stored prompt prefix (docs/bundle.md), for sf_core_model_add_prefix, in the order of the manifest,
 * valid as long as the handle; NULL after the last. The handle of a bundle has the prefixes of the base model, the
 * handle of an adapter those of the adapter. */
SF_EXPORT const char* sf_bundle_prefix(const sf_bundle*, int32_t index);

/* NULL if sf_bundle_open accepts this public key; otherwise an error message, a string constant. */
SF_EXPORT const char* sf_bundle_check_key(const char* public_key);

/* Checks the JSON text of a manifest without reading any file: SF_OK, or SF_BAD_FILE with "field: reason" written to
 * `message`, null-terminated and truncated to `capacity` bytes. */
SF_EXPORT int sf_bundle_check_manifest(const char* manifest, size_t bytes, char* message, size_t capacity);

/* Reads an estimate from the manifest in `folder`. No other file is read, and none is checked. The caller sets
 * `out->size`. The message of SF_BAD_FILE or SF_BAD_ARGUMENT is written to `message`, null-terminated and truncated to
 * `capacity` bytes. */
SF_EXPORT int sf_bundle_estimate(const char* folder, sf_estimate* out, char* message, size_t capacity);

/* Checks manifest.json in `folder` and, unless public_key is NULL, that manifest.sig is a signature of it by this key.
 * No other file needs to exist, so a download can call it before it requests the files that the manifest lists. The
 * message of SF_BAD_FILE or SF_BAD_ARGUMENT is written to `message`, null-terminated and truncated to `capacity`
 * bytes. */
SF_EXPORT int sf_bundle_verify_manifest(const char* folder, const char* public_key, char* message, size_t capacity);

SF_EXPORT void sf_bundle_close(sf_bundle*);
SF_EXPORT const char* sf_bundle_error(const sf_bundle*); /* never NULL */

/* The specification for sf_core_model_open, including the bundle's identity and stop tokens. The caller sets
 * `out->size`. */
SF_EXPORT int sf_bundle_spec(const sf_bundle*, sf_spec* out);

/* The drafting tables for sf_core_model_open, as views of a memory-mapped file; *count is 0 if there are none. They are
 * valid as long as the bundle, so close it after the last sequence. */
SF_EXPORT int sf_bundle_tensors(const sf_bundle*, const sf_tensor** out, int32_t* count);

/* sf_default_options with the manifest's sampling_defaults. The caller sets `out->size`. */
SF_EXPORT int sf_bundle_defaults(const sf_bundle*, sf_options* out);

/* The inputs and expected outputs of every method, for sf_core_model_self_test. */
typedef struct sf_bundle_selftest sf_bundle_selftest;

/* Reads selftest.npz. SF_BAD_FILE if the bundle has none, or it is damaged; SF_BAD_ARGUMENT for the handle of an
 * adapter, for which nothing is recorded. */
SF_EXPORT int sf_bundle_selftest_open(const sf_bundle*, sf_bundle_selftest** out);
SF_EXPORT void sf_bundle_selftest_close(sf_bundle_selftest*);
SF_EXPORT const char* sf_bundle_selftest_error(const sf_bundle_selftest*); /* never NULL */

/* Its arrays, with all dimensions after the first flattened into one; and for each method M an array M.snr_db [1], the
 * SNR from the manifest's `parity`, in dB. Valid as long as the handle. */
SF_EXPORT int sf_bundle_selftest_tensors(const sf_bundle_selftest*, const sf_tensor** out, int32_t* count);

/* The JSON text of manifest.json, byte for byte; for an adapter, see sf_bundle_adapter. */
SF_EXPORT const char* sf_bundle_manifest(const sf_bundle*);

/* The folder that was opened: the given one or, if a writer was killed while it replaced that, the previous version,
 * which it had moved aside. */
SF_EXPORT const char* sf_bundle_folder(const sf_bundle*);

/* The path of the graphs: model.pte, the folder model.mlpackage, or the bundle's folder (one .onnx file per method). */
SF_EXPORT const char* sf_bundle_graph(const sf_bundle*);

/* 1 if the bundle has a chat template. */
SF_EXPORT int32_t sf_bundle_can_chat(const sf_bundle*);

/* ---- text of one sequence ---------------------------------------------------------------------------------------- */

/* The tokenizer and chat template of a bundle, with an empty conversation. */
SF_EXPORT int sf_new_text(sf_bundle*, sf_text** out);

/* A text for a checkpoint instead of a bundle. tokenizer: the path of a tokenizer.json. model: NULL, or a JSON object
 * with the optional keys chat_template (a string), bos_token_id (a number), eos_token_ids (a list) and vocab_size (the
 * model's number of logits; default: the tokenizer's number of tokens). SF_BAD_FILE if the file is not a tokenizer or
 * the template is invalid. */
SF_EXPORT int sf_text_open(const char* tokenizer, const char* model, size_t bytes, sf_text** out);

/* Another text with the same tokenizer and template and its own conversation, for another sequence or thread. Cheap: no
 * file is read. */
SF_EXPORT int sf_text_clone(const sf_text*, sf_text** out);
SF_EXPORT void sf_free_text(sf_text*);
SF_EXPORT const char* sf_text_error(const sf_text*); /* never NULL */

/* 1 if there is a chat template. */
SF_EXPORT int32_t sf_text_can_chat(const sf_text*);

/* Token ids of a text. marks 1: with the special tokens that the tokenizer adds around a prompt, such as BOS, for a raw
 * prompt; 0: without, for text from a template, which contains them. SF_BAD_ARGUMENT if it is not UTF-8. */
SF_EXPORT int sf_text_encode(sf_text*, const char* text, size_t bytes, int32_t marks, const int64_t** ids, int64_t* n);

/* The number of tokens of a text in a chat message, without what the chat template adds. The characters of a control
 * token count as text. If there is no chat template: in a raw prompt, without special tokens such as BOS. */
SF_EXPORT int sf_text_count(sf_text*, const char* text, size_t bytes, int64_t* n);

/* The text of tokens, without special tokens. */
SF_EXPORT int sf_text_decode(sf_text*, const int64_t* ids, int64_t n, const char** text, size_t* bytes);

/* The bytes of a token, which may be part of a character; the name of a special token. Empty (*bytes = 0) for an
 * unknown id. */
SF_EXPORT int sf_text_token(sf_text*, int64_t id, const char** text, size_t* bytes);

/* Renders messages with the chat template, ending where the answer begins. messages: a JSON list of
 * {"role": ..., "content": ...}; a template may read further fields, such as tool_calls (the content may then be null),
 * tool_call_id, name and reasoning_content. SF_BAD_ARGUMENT if there is no template or it rejects the messages. The
 * result is for display. For token ids use sf_text_ask or sf_text_encode_chat, which distinguish the template's control
 * tokens from the same characters in a message. */
SF_EXPORT int sf_text_render(sf_text*, const char* messages, size_t bytes, const char** text, size_t* text_bytes);

/* The same, but with the character U+FDD0 inserted where a message contains the characters of a control token.
 * sf_text_encode with marks 0 encodes this text, whole or in parts, as sf_text_encode_chat encodes the messages. */
SF_EXPORT int sf_text_render_cut(sf_text*, const char* messages, size_t bytes, const char** text, size_t* text_bytes);

/* Token ids of messages, rendered with the chat template. */
SF_EXPORT int sf_text_encode_chat(sf_text*, const char* messages, size_t bytes, const int64_t** ids, int64_t* n);

/* ---- conversation ------------------------------------------------------------------------------------------------ */

/* Starts a conversation with a system message (NULL: none) and earlier messages (as for sf_text_render; NULL: none). */
SF_EXPORT int sf_text_set_first(sf_text*, const char* system, size_t system_bytes, const char* messages, size_t bytes);

/* Drops all messages except those of sf_text_set_first. */
SF_EXPORT int sf_text_reset(sf_text*);

/* The functions that the model may call: a JSON list in OpenAI's format, {"type": "function", "function": {"name": ...,
 * "description": ..., "parameters": a JSON schema}}, or a list of only the function objects; NULL: none. The template
 * writes them into the prompt; control tokens in them are encoded as plain text. sf_text_reset keeps them. */
SF_EXPORT int sf_text_set_tools(sf_text*, const char* tools, size_t bytes);

/* Further template variables, as the keyword arguments of transformers' apply_chat_template: a JSON object such as
 * {"enable_thinking": false}, which may include `documents`, a list of objects; NULL: none. sf_text_reset keeps
 * them. */
SF_EXPORT int sf_text_set_variables(sf_text*, const char* variables, size_t bytes);

/* Sets what to do with later questions that do not fit into the context: SF_CONTEXT_FAIL refuses them with
 * SF_CONTEXT_FULL, SF_CONTEXT_DROP_OLDEST drops the oldest turns. capacity is the context length of the model, and
 * max_new_tokens the sf_options.max_new_tokens of the next answer. Capacity 0, the initial value: no question is
 * refused. SF_CONTEXT_DROP_OLDEST drops the fewest turns that leave max_new_tokens for an answer, or a quarter of the
 * context if max_new_tokens is not smaller than the context. A turn is a question with all that follows it: the answer,
 * tool calls and results. The system message at the beginning, the tools and the last question are kept; if they leave
 * less room, the answer gets what is left. A question is refused only if these exceed the context. The remaining turns
 * are encoded again, exactly as in a conversation that begins with them. */
SF_EXPORT int sf_text_set_limit(sf_text*, int64_t capacity, int64_t max_new_tokens, int32_t policy);

/* The number of turns that were dropped for the last question, and of tokens that this removed from the context, for
 * sf_options.dropped_turns and dropped_tokens. 0 after the question is answered or discarded; discarding it restores
 * the dropped turns. */
SF_EXPORT int sf_text_dropped(sf_text*, int64_t* turns, int64_t* tokens);

/* Adds a user message and returns the token ids of the whole context, for sf_sequence_start. Earlier answers keep the
 * tokens that the model generated instead of being encoded again, so that the KV cache stays valid. sf_text_end
 * completes the turn, sf_text_take_back discards it; SF_BAD_ARGUMENT if an earlier turn is not completed. Ends a
 * running stream. */
SF_EXPORT int sf_text_ask(sf_text*, const char* text, size_t bytes, const int64_t** ids, int64_t* n);

/* The same with any messages, as for sf_text_render: the answer follows the last one. */
SF_EXPORT int sf_text_ask_messages(sf_text*, const char* messages, size_t bytes, const int64_t** ids, int64_t* n);

/* The same with the results of the last answer's tool calls instead of a user message. results: a JSON list of
 * {"tool_call_id": ..., "content": ...}. The function's "name" can replace the id; without either, results are in the
 * order of the calls. Content that is not a string is written as JSON. */
SF_EXPORT int sf_text_ask_results(sf_text*, const char* results, size_t bytes, const int64_t** ids, int64_t* n);

/* The tool calls of the last answer: a JSON list of {"id": ..., "name": ..., "arguments": {...}}, [] if it has none, or
 * if the last question was dropped because it was stopped before the first token.
 * Calls are recognized after sf_text_set_tools, in the format of the model's family, which is derived from the chat
 * template. A call that cannot be parsed is part of the text. The message has the calls in `tool_calls` and the
 * remaining text in `content`. */
SF_EXPORT int sf_text_tool_calls(sf_text*, const char** json, size_t* bytes);

/* Discards a user message without an answer, and the stream of its answer. Does nothing if there is none. */
SF_EXPORT int sf_text_take_back(sf_text*);

/* The messages so far as a JSON list; an answer is included once it has ended. */
SF_EXPORT int sf_text_messages(sf_text*, const char** json, size_t* bytes);

/* Serializes the conversation, for the note of sf_sequence_save. sf_text_restore restores it, or returns SF_BAD_FILE
 * and changes nothing. sf_text_save ends a running answer first. The bytes are JSON: {"messages": [...], "read_text":
 * the text in the KV cache, "read_ids": its token ids}. */
SF_EXPORT int sf_text_save(sf_text*, const void** note, size_t* bytes);
SF_EXPORT int sf_text_restore(sf_text*, const void* note, size_t bytes);

/* ---- streaming an answer ----------------------------------------------------------------------------------------- */

/* Begins a stream of tokens and ends a running one. stops: a JSON list of stop strings, or NULL; they may contain
 * special tokens, which are never shown. before: the tokens of a prompt that the text continues (n 0: none); that
 * matters for tokenizers that drop the space before the first word of a text. restriction: the text of the answer's
 * regex or grammar, "" for a JSON schema or another constraint, NULL for none. A restricted answer has no tool calls,
 * and thinking only if this text contains its closing tag. */
SF_EXPORT int sf_text_begin(sf_text*, const char* stops, size_t bytes, const int64_t* before, int64_t n,
                            const char* restriction, size_t restriction_bytes);

/* A part of the streamed text. In a turn, the answer is split: thinking is the text between tags such as <think> and
 * </think>. Together, all parts are the text of the answer without these tags and the white space next to them. */
typedef struct sf_text_part {
  const char* text;
  size_t bytes;
  int32_t channel; /* SF_ANSWER, SF_THINKING or SF_TOOL_CALL */
  int32_t reserved;
} sf_text_part;

/* Adds a token and returns the text that can be shown: often none, never part of a character, and never text that may
 * be the beginning of a stop string or of a tag. A token of thinking that completes no text, or only a tag of thinking,
 * returns an empty part of SF_THINKING. SF_END if a stop string is complete: the text before it is returned, and none
 * after it. */
SF_EXPORT int sf_text_push(sf_text*, int64_t id, const sf_text_part** parts, int32_t* n);

/* Ends the stream and returns text that was held back. In a turn, the text becomes the assistant's message and the turn
 * is complete; with stopped 1 (the caller ended the answer) and no token, the user message is discarded instead. Does
 * nothing if no stream is running. */
SF_EXPORT int sf_text_end(sf_text*, int32_t stopped, const sf_text_part** parts, int32_t* n);

/* ---- constraints ------------------------------------------------------------------------------------------------ */

enum {
  SF_JSON_SCHEMA = 1, /* draft 2020-12; "x-guidance" in it sets white space, compact by default */
  SF_REGEX = 2,       /* the whole text matches it; Rust's syntax */
  SF_LARK = 3         /* a context-free grammar in Lark's syntax, with llguidance's extensions */
};

/* A constraint for a text of this vocabulary (sf_constraint in streamfuse_core.h), for sf_options.constraint. The
 * caller sets `out->size`. The caller, or the sequence that takes it, releases it once, and it may outlive the sf_text.
 * The first call on a bundle builds a prefix tree of its vocabulary. SF_BAD_GRAMMAR: the grammar is invalid, not
 * supported or too large; the message names the keyword and its path, or the line. docs/structured.md says what is
 * supported. */
SF_EXPORT int sf_text_constrain(sf_text*, int32_t kind, const char* grammar, size_t bytes, sf_constraint* out);

/* A constraint for the answer to the last question of a conversation with tools. choice: "auto": any text, in which
 * calls name one of the tools and their arguments match its parameters; "none": any text without calls; "required", or
 * the name of a function: one call, after the thinking that the prompt may have begun. The arguments are restricted in
 * call formats that are JSON; in other formats only the name is. Keywords of a parameter schema that are not
 * supported do not restrict the arguments; for a function with "strict": true they are an error. NULL: "auto". Without functions, "auto"
 * and "none" mean no constraint (`out->size` becomes 0). */
SF_EXPORT int sf_text_constrain_calls(sf_text*, const char* choice, size_t bytes, sf_constraint* out);

/* A constraint for an answer that fits a grammar (kind and grammar as in sf_text_constrain) or is one call, after the
 * thinking that the prompt may have begun. Without functions it only allows what fits the grammar. */
SF_EXPORT int sf_text_constrain_answer_or_call(sf_text*, int32_t kind, const char* grammar, size_t bytes,
                                               sf_constraint* out);

/* The number of tokens in a constraint's mask: the model's vocab_size, as in sf_spec. */
SF_EXPORT int64_t sf_text_vocab_size(const sf_text*);

#ifdef __cplusplus
}
#endif
#endif
