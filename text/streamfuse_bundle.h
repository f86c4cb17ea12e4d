/* A bundle, and the text around its tokens, for every language. It opens and checks the folder, gives the core its
 * facts and drafting tables, turns text into tokens and back, renders the chat template and keeps a conversation.
 * Written in Rust; core/streamfuse_core.h is the loop.
 *
 *     sf_bundle* bundle;
 *     if (sf_bundle_open("build/demo", 1, &bundle)) die(sf_bundle_error(bundle));
 *     sf_spec spec = {.size = sizeof spec};
 *     sf_bundle_spec(bundle, &spec);                       // and sf_bundle_tensors, for sf_core_model_open
 *     sf_text* text;
 *     sf_new_text(bundle, &text);
 *     sf_text_ask(text, "Why is the sky blue?", 20, &ids, &n);   // for sf_sequence_start
 *     sf_text_begin(text, NULL, 0);
 *     while (sf_sequence_next(session, &token) == SF_OK) {
 *       int code = sf_text_push(text, token.id, &shown, &bytes);
 *       fwrite(shown, 1, bytes, stdout);
 *       if (code == SF_END) sf_sequence_finish(session, "stop");    // a stop string is complete
 *     }
 *     sf_text_end(text, &shown, &bytes);
 *
 * Rules, as in core/streamfuse_core.h
 *   - Functions that return int return SF_OK, SF_END (sf_text_push only) or an error code; the sentence of the last
 *     failure stays on the handle; a bundle's is that of opening it. sf_bundle_open*, sf_new_text, sf_text_open and
 *     sf_text_clone give a handle also where they fail, unless memory is out; it must be freed like any other.
 *   - A bundle never changes: any threads may use it. A text is used by one thread at a time. Texts keep their bundle
 *     alive.
 *   - Text is UTF-8 with its length in bytes and may hold zero bytes; lists of text are JSON. What is handed out
 *     belongs to the handle: a bundle's as long as the bundle, a text's until the next call on that text.
 *   - No function throws, prints, starts a thread, or depends on the locale. None aborts but where memory is out.
 */
#ifndef STREAMFUSE_BUNDLE_H
#define STREAMFUSE_BUNDLE_H

#include "streamfuse_core.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct sf_bundle sf_bundle;
typedef struct sf_text sf_text;

/* Reads and checks a bundle folder: the manifest, names, sizes, the drafting tables, tokenizer and chat template; with
 * check_hashes 1 also the SHA-256 of every file. SF_BAD_FILE (or SF_BAD_TABLES) names file and field in one line. */
SF_EXPORT int sf_bundle_open(const char* folder, int32_t check_hashes, sf_bundle** out);

/* The same for a bundle that was signed: its manifest.sig must sign its manifest.json with this key, and all hashes are
 * checked. public_key: the line that `streamfuse bundle keygen` writes, 64 hexadecimal digits, closed by a zero byte.
 * SF_BAD_ARGUMENT where it is no key; SF_BAD_FILE where the signature is missing, damaged or of another key. */
SF_EXPORT int sf_bundle_open_signed(const char* folder, const char* public_key, sf_bundle** out);

/* NULL for a public key as sf_bundle_open_signed takes it; else what is wrong with it, a sentence that lives for ever.
 */
SF_EXPORT const char* sf_bundle_check_key(const char* public_key);

/* Checks the text of a manifest before it is written: SF_OK, or SF_BAD_FILE with the problem, "field: reason", in
 * `sentence`, which has `room` bytes and is closed by a zero byte. Nothing is looked for in the file system. */
SF_EXPORT int sf_bundle_check_manifest(const char* manifest, size_t bytes, char* sentence, size_t room);
SF_EXPORT void sf_bundle_close(sf_bundle*);
SF_EXPORT const char* sf_bundle_error(const sf_bundle*); /* never NULL */

/* The facts for sf_core_model_open, identity and stop tokens included. `out->size` is set by the caller. */
SF_EXPORT int sf_bundle_spec(const sf_bundle*, sf_spec* out);

/* The drafting tables for sf_core_model_open: views of the mapped file. *count is 0 where there are none. They live as
 * long as the bundle, so close it after the last session. */
SF_EXPORT int sf_bundle_tensors(const sf_bundle*, const sf_tensor** out, int32_t* count);

/* sf_default_options with the manifest's sampling_defaults. `out->size` is set by the caller. */
SF_EXPORT int sf_bundle_defaults(const sf_bundle*, sf_options* out);

/* The manifest as JSON text, as it lies in the file. */
SF_EXPORT const char* sf_bundle_manifest(const sf_bundle*);

/* The folder that was opened: the given one, or the one that a writer set aside and was killed before it put another in
 * its place. */
SF_EXPORT const char* sf_bundle_folder(const sf_bundle*);

/* Where the graphs are: the path of model.pte, of the folder model.mlpackage, or of the bundle (an .onnx per method).
 */
SF_EXPORT const char* sf_bundle_graph(const sf_bundle*);

/* 1 where the bundle has a chat template. */
SF_EXPORT int32_t sf_bundle_can_chat(const sf_bundle*);

/* ---- text of one sequence ------------------------------------------------------------------------------------------
 */

SF_EXPORT int sf_new_text(sf_bundle*, sf_text** out);

/* The text of a checkpoint, which is in no bundle. tokenizer: the path of a tokenizer.json, closed by a zero byte.
 * model: a JSON object with chat_template (a text), bos_token_id (a number) and eos_token_ids (a list), each of which
 * may be missing, or NULL. SF_BAD_FILE names a file that is no tokenizer, or says why the template is not valid. */
SF_EXPORT int sf_text_open(const char* tokenizer, const char* model, size_t bytes, sf_text** out);

/* Another text with the same tokenizer and template and a conversation of its own: another sequence, or for another
 * thread. It costs no reading. */
SF_EXPORT int sf_text_clone(const sf_text*, sf_text** out);
SF_EXPORT void sf_free_text(sf_text*);
SF_EXPORT const char* sf_text_error(const sf_text*); /* never NULL */

/* 1 where there is a chat template. */
SF_EXPORT int32_t sf_text_can_chat(const sf_text*);

/* Token ids of a text. marks 1: with the marks that the tokenizer itself puts around a prompt (a raw prompt); 0:
 * without (text that a template wrote). SF_BAD_ARGUMENT where it is not UTF-8. */
SF_EXPORT int sf_text_encode(sf_text*, const char* text, size_t bytes, int32_t marks, const int64_t** ids, int64_t* n);

/* Text of tokens, without special ones. */
SF_EXPORT int sf_text_decode(sf_text*, const int64_t* ids, int64_t n, const char** text, size_t* bytes);

/* A chat as the model was trained to read it, up to where its answer begins. messages: a JSON list of
 * {"role": ..., "content": ...}, with more fields of text if the template reads them. SF_BAD_ARGUMENT where there is no
 * template, or it refuses these messages. For people to read: token ids of a chat come from sf_text_ask or
 * sf_text_encode_chat, which tell control tokens of the template from those that a message spells. */
SF_EXPORT int sf_text_render(sf_text*, const char* messages, size_t bytes, const char** text, size_t* text_bytes);

/* The same with the character U+FDD0 in each control token that a message spells. sf_text_encode with marks 0 reads
 * such a text, whole or in parts, as sf_text_encode_chat does. */
SF_EXPORT int sf_text_render_cut(sf_text*, const char* messages, size_t bytes, const char** text, size_t* text_bytes);

/* Token ids of a chat. */
SF_EXPORT int sf_text_encode_chat(sf_text*, const char* messages, size_t bytes, const int64_t** ids, int64_t* n);

/* ---- a conversation ------------------------------------------------------------------------------------------------
 */

/* Begins anew, with these messages (as for sf_text_render; NULL: none), for example a system message. */
SF_EXPORT int sf_text_reset(sf_text*, const char* messages, size_t bytes);

/* Adds a turn of the user: the token ids of the whole context, for sf_sequence_start. What the model wrote in earlier
 * turns keeps the very tokens that it wrote, so that the cache is not read again. The turn is closed by sf_text_end, or
 * forgotten by sf_text_take_back; SF_BAD_ARGUMENT where an earlier one still waits for that. A stream that runs is
 * ended.
 */
SF_EXPORT int sf_text_ask(sf_text*, const char* text, size_t bytes, const int64_t** ids, int64_t* n);

/* Closes the turn with an answer that another text has streamed, whole or cut short: the text that was shown, and its
 * tokens. SF_BAD_ARGUMENT where no question waits for one. */
SF_EXPORT int sf_text_answer(sf_text*, const char* text, size_t bytes, const int64_t* ids, int64_t n);

/* Forgets a question that was not answered, and the stream of its answer. Nothing happens where there is none. */
SF_EXPORT int sf_text_take_back(sf_text*);

/* The messages so far as a JSON list; an answer that is being written comes when it ends. */
SF_EXPORT int sf_text_messages(sf_text*, const char** json, size_t* bytes);

/* The conversation as bytes, for the note of sf_sequence_save; sf_text_restore takes them back, or refuses them
 * (SF_BAD_FILE) and changes nothing. An answer that is being written is closed first. The bytes are JSON:
 * {"messages": [...], "read_text": what the cache holds as text, "read_ids": the same as token ids}. */
SF_EXPORT int sf_text_save(sf_text*, const void** note, size_t* bytes);
SF_EXPORT int sf_text_restore(sf_text*, const void* note, size_t bytes);

/* ---- an answer as it is written ------------------------------------------------------------------------------------
 */

/* Begins a stream of tokens; one that runs is ended. stops: a JSON list of stop strings, or NULL; they may contain
 * special tokens, which are never shown. Without a question that was asked, the text continues the prompt that
 * sf_text_encode gave last with marks 1: a tokenizer may leave out the space before the first word of a text. */
SF_EXPORT int sf_text_begin(sf_text*, const char* stops, size_t bytes);

/* The same for a text that continues these tokens, whoever encoded them; n 0: a text of its own. */
SF_EXPORT int sf_text_begin_after(sf_text*, const char* stops, size_t bytes, const int64_t* before, int64_t n);

/* The text that may be shown after this token: often none, never part of a character, never the beginning of what may
 * become a stop string. SF_END where a stop string is complete: what stands before it is given, and no text after it.
 */
SF_EXPORT int sf_text_push(sf_text*, int64_t id, const char** text, size_t* bytes);

/* The end: text that was held back as the possible beginning of a stop string. An asked turn is closed: what was shown
 * becomes the model's message, whole or cut short. Nothing happens where no stream runs. */
SF_EXPORT int sf_text_end(sf_text*, const char** text, size_t* bytes);

/* ---- constraints ------------------------------------------------------------------------------------------------ */

enum {
  SF_JSON_SCHEMA = 1, /* draft 2020-12; "x-guidance" in it sets white space, compact by default */
  SF_REGEX = 2,       /* the whole text matches it; Rust's syntax */
  SF_LARK = 3         /* a context-free grammar in Lark's syntax, with llguidance's extensions */
};

/* A constraint for a text of this vocabulary (sf_constraint in streamfuse_core.h), for sf_options.constraint; the
 * caller, or the sequence that takes it, releases it once, and it may outlive the sf_text. The first call on a bundle
 * builds a prefix tree of its vocabulary. SF_BAD_GRAMMAR: the grammar is invalid, not supported or too large; the
 * message names the keyword and its path, or the line. */
SF_EXPORT int sf_text_constrain(sf_text*, int32_t kind, const char* grammar, size_t bytes, sf_constraint* out);

#ifdef __cplusplus
}
#endif
#endif
