// The native half of the Kotlin library: dev.streamfuse.Native over the C interfaces of core, engine and bundle.
//
// Handles are pointers that Kotlin keeps as long; its locks see to it that none is used after it was freed, and that
// one thread at a time uses a session (stop excepted). Text travels as UTF-8 bytes. Functions return a code of
// streamfuse_core.h, whose sentence modelError or error gives; none leaves an exception pending or a reference behind.
#include <dlfcn.h>
#include <jni.h>
#include <sys/stat.h>

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <new>
#include <string>
#include <vector>

#include "streamfuse_bundle.h"
#include "streamfuse_engine.h"

#define NATIVE(type, name) extern "C" JNIEXPORT type JNICALL Java_dev_streamfuse_Native_##name

namespace {

struct Model {
  sf_bundle* bundle = nullptr;
  sf_program* program = nullptr;
  sf_core_model* model = nullptr;
  std::string said;  // the sentence of the last failure
};

struct Session {
  sf_sequence* session = nullptr;
  sf_text* text = nullptr;
  const char* shown = nullptr;  // the text of the last step, where it did not fit into the reply
  size_t bytes = 0;
  bool asked = false;  // the text is a turn of the conversation
  std::string said;
};

// How Kotlin's direct buffer is laid out; Reply.kt has the same places. A step's text lies behind the step.
struct Step {
  int64_t bytes, id;
  int32_t source, reserved;
};
struct Options {
  int64_t max_new_tokens;
  double temperature;
  int64_t top_k;
  double top_p, min_p, repetition_penalty;
  int64_t seed;
  int32_t ignore_eos, speculative, width, can_chat;
};
static_assert(sizeof(Step) == 24 && sizeof(Options) == 72, "Reply.kt counts on these sizes");

template <typename T>
T* of(jlong handle) {
  return reinterpret_cast<T*>(handle);
}

template <typename T>
T* in(JNIEnv* env, jobject buffer) {
  return static_cast<T*>(env->GetDirectBufferAddress(buffer));
}

std::string text_of(JNIEnv* env, jbyteArray bytes) {
  std::string text(static_cast<size_t>(env->GetArrayLength(bytes)), '\0');
  env->GetByteArrayRegion(bytes, 0, static_cast<jsize>(text.size()), reinterpret_cast<jbyte*>(text.data()));
  return text;
}

// Null where Java's memory is out.
jbyteArray bytes_of(JNIEnv* env, const char* text, size_t bytes) {
  if (text == nullptr || bytes > INT32_MAX) return nullptr;
  jbyteArray array = env->NewByteArray(static_cast<jsize>(bytes));
  if (array == nullptr) {
    env->ExceptionClear();
    return nullptr;
  }
  env->SetByteArrayRegion(array, 0, static_cast<jsize>(bytes), reinterpret_cast<const jbyte*>(text));
  return array;
}

jbyteArray bytes_of(JNIEnv* env, const char* text) {
  return bytes_of(env, text, text == nullptr ? 0 : std::strlen(text));
}

// Runs `body`, which returns a code; where memory is out, that is the code.
template <typename Body>
int guarded(std::string& said, Body body) noexcept {
  try {
    return body();
  } catch (const std::exception&) {
    said.clear();  // Kotlin has a sentence for this one
    return SF_OUT_OF_MEMORY;
  }
}

int failed(std::string& said, int code, const char* sentence) {
  if (code != SF_OK) said = sentence;
  return code;
}

bool ends_with(const std::string& text, const std::string& end) {
  return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

// `key` is a null pointer where nobody asks for a signature.
int open_model(Model& model, const std::string& folder, int threads, bool check_hashes, const char* key) {
  int code = key == nullptr ? sf_bundle_open(folder.c_str(), check_hashes ? 1 : 0, &model.bundle)
                            : sf_bundle_open_signed(folder.c_str(), key, &model.bundle);
  if (code != SF_OK) return failed(model.said, code, sf_bundle_error(model.bundle));
  const std::string graph = sf_bundle_graph(model.bundle);
  if (!ends_with(graph, ".pte")) {
    model.said = folder + " is for " +
                 (ends_with(graph, ".mlpackage") ? "Core ML on Apple's devices" : "ONNX Runtime") +
                 "; this library runs bundles exported with --target executorch";
    return SF_BAD_PROGRAM;
  }
  code = sf_program_open(graph.c_str(), threads, &model.program);
  if (code != SF_OK) return failed(model.said, code, sf_program_error(model.program));
  sf_spec spec{};
  spec.size = sizeof spec;
  code = sf_bundle_spec(model.bundle, &spec);
  if (code != SF_OK) return failed(model.said, code, sf_bundle_error(model.bundle));
  code = sf_program_check(model.program, &spec);
  if (code != SF_OK) return failed(model.said, code, sf_program_error(model.program));
  const sf_tensor* tensors = nullptr;
  int32_t count = 0;
  code = sf_bundle_tensors(model.bundle, &tensors, &count);
  if (code != SF_OK) return failed(model.said, code, sf_bundle_error(model.bundle));
  code = sf_core_model_open(&spec, tensors, count, &model.model);
  return failed(model.said, code, sf_core_model_error(model.model));
}

int open_session(Model& model, Session& session, const char* messages, size_t bytes, sf_sequence_options& options) {
  int code = sf_new_text(model.bundle, &session.text);
  if (code == SF_OK) code = sf_text_reset(session.text, messages, bytes);
  if (code != SF_OK) return failed(model.said, code, sf_text_error(session.text));
  sf_engine* engine = nullptr;
  code = sf_engine_new(model.program, &engine);
  if (code != SF_OK) return failed(model.said, code, sf_program_error(model.program));
  sf_backend backend{};
  sf_engine_backend(engine, &backend);
  code = sf_sequence_new(model.model, &backend, &options, &session.session);
  return failed(model.said, code, sf_sequence_error(session.session));
}

void free_session(Session* session) {
  sf_sequence_free(session->session);
  sf_free_text(session->text);
  delete session;
}

// Puts a step's text behind it, or leaves it to `longText` where it does not fit.
void reply(JNIEnv* env, jobject buffer, Session& session, const sf_token& token) {
  const size_t room = static_cast<size_t>(env->GetDirectBufferCapacity(buffer)) - sizeof(Step);
  Step* step = in<Step>(env, buffer);
  *step = {static_cast<int64_t>(session.bytes), token.id, token.source, 0};
  if (session.bytes > 0 && session.bytes <= room) std::memcpy(step + 1, session.shown, session.bytes);
}

}  // namespace

// ---- a model ----

// Puts the handle into the reply's id, also where it fails; 0 where memory is out.
NATIVE(jint, openModel)
(JNIEnv* env, jclass, jbyteArray folder, jint threads, jboolean check_hashes, jbyteArray key, jobject buffer) {
  Model* model = new (std::nothrow) Model;
  in<Step>(env, buffer)->id = reinterpret_cast<int64_t>(model);
  if (model == nullptr) return SF_OUT_OF_MEMORY;
  return guarded(model->said, [&] {
    const std::string line = key == nullptr ? "" : text_of(env, key);
    return open_model(*model, text_of(env, folder), threads, check_hashes, key == nullptr ? nullptr : line.c_str());
  });
}

NATIVE(void, closeModel)(JNIEnv*, jclass, jlong handle) {
  Model* model = of<Model>(handle);
  sf_core_model_close(model->model);
  sf_program_close(model->program);
  sf_bundle_close(model->bundle);
  delete model;
}

NATIVE(jbyteArray, modelError)(JNIEnv* env, jclass, jlong handle) {
  return bytes_of(env, of<Model>(handle)->said.c_str());
}

NATIVE(jbyteArray, manifest)(JNIEnv* env, jclass, jlong handle) {
  return bytes_of(env, sf_bundle_manifest(of<Model>(handle)->bundle));
}

NATIVE(jbyteArray, identity)(JNIEnv* env, jclass, jlong handle) {
  sf_spec spec{};
  spec.size = sizeof spec;
  return sf_bundle_spec(of<Model>(handle)->bundle, &spec) == SF_OK ? bytes_of(env, spec.identity) : nullptr;
}

// The engine's own description of the program, JSON.
NATIVE(jbyteArray, description)(JNIEnv* env, jclass, jlong handle) {
  const char* json = nullptr;
  return sf_program_describe(of<Model>(handle)->program, &json) == SF_OK ? bytes_of(env, json) : nullptr;
}

// The bundle's defaults as Options.
NATIVE(jint, defaults)(JNIEnv* env, jclass, jlong handle, jobject buffer) {
  Model* model = of<Model>(handle);
  sf_options options{};
  options.size = sizeof options;
  const int code = sf_bundle_defaults(model->bundle, &options);
  if (code != SF_OK)
    return guarded(model->said, [&] { return failed(model->said, code, sf_bundle_error(model->bundle)); });
  *in<Options>(env, buffer) = {options.max_new_tokens,
                               options.temperature,
                               options.top_k,
                               options.top_p,
                               options.min_p,
                               options.repetition_penalty,
                               static_cast<int64_t>(options.seed),
                               options.ignore_eos,
                               options.speculative,
                               options.width,
                               sf_bundle_can_chat(model->bundle)};
  return SF_OK;
}

// What tells one build of the library from another: size and time of its file, or its path inside an app.
NATIVE(jbyteArray, engineStamp)(JNIEnv* env, jclass) {
  Dl_info info{};
  if (dladdr(reinterpret_cast<const void*>(&sf_sequence_next), &info) == 0 || info.dli_fname == nullptr) return nullptr;
  struct stat facts {};
  if (stat(info.dli_fname, &facts) != 0) return bytes_of(env, info.dli_fname);
  char stamp[64];
  std::snprintf(stamp, sizeof stamp, "engine %lld %lld", static_cast<long long>(facts.st_size),
                static_cast<long long>(facts.st_mtime));
  return bytes_of(env, stamp);
}

NATIVE(jbyteArray, backends)(JNIEnv* env, jclass) {
  const char* const json = sf_engine_backends();
  return json == nullptr ? nullptr : bytes_of(env, json);
}

// ---- a session ----

// Puts the handle into the reply's id. Where it fails there is none, and the model has the sentence.
NATIVE(jint, newSession)
(JNIEnv* env, jclass, jlong handle, jbyteArray messages, jbyteArray cost_file, jbyteArray device, jdouble load_ms,
 jobject buffer) {
  Model* model = of<Model>(handle);
  Session* session = new (std::nothrow) Session;
  if (session == nullptr) return model->said.clear(), SF_OUT_OF_MEMORY;
  const int code = guarded(model->said, [&] {
    const std::string turns = text_of(env, messages), device_text = text_of(env, device);
    const std::string costs = cost_file == nullptr ? "" : text_of(env, cost_file);
    sf_sequence_options options{};
    options.size = sizeof options;
    options.cost_file = cost_file == nullptr ? nullptr : costs.c_str();
    options.device = device_text.c_str();
    options.model_load_ms = load_ms;
    return open_session(*model, *session, turns.data(), turns.size(), options);
  });
  if (code == SF_OK)
    in<Step>(env, buffer)->id = reinterpret_cast<int64_t>(session);
  else
    free_session(session);
  return code;
}

NATIVE(void, freeSession)(JNIEnv*, jclass, jlong handle) { free_session(of<Session>(handle)); }

NATIVE(jbyteArray, error)(JNIEnv* env, jclass, jlong handle) {
  return bytes_of(env, of<Session>(handle)->said.c_str());
}

// Begins an answer with the Options in the buffer: to a turn of the user, or (raw) after the prompt as it is.
NATIVE(jint, start)
(JNIEnv* env, jclass, jlong handle, jbyteArray prompt, jboolean raw, jbyteArray stops, jlongArray stop_ids,
 jobject buffer) {
  Session& s = *of<Session>(handle);
  return guarded(s.said, [&] {
    const Options asked = *in<Options>(env, buffer);
    const std::string text = text_of(env, prompt), stop_list = text_of(env, stops);
    std::vector<int64_t> stop_tokens(static_cast<size_t>(env->GetArrayLength(stop_ids)));
    env->GetLongArrayRegion(stop_ids, 0, static_cast<jsize>(stop_tokens.size()),
                            reinterpret_cast<jlong*>(stop_tokens.data()));
    sf_options options{};
    sf_default_options(&options);
    options.max_new_tokens = asked.max_new_tokens;
    options.temperature = asked.temperature;
    options.top_k = asked.top_k;
    options.top_p = asked.top_p;
    options.min_p = asked.min_p;
    options.repetition_penalty = asked.repetition_penalty;
    options.seed = static_cast<uint64_t>(asked.seed);
    options.stop_ids = stop_tokens.data();
    options.stop_count = static_cast<int32_t>(stop_tokens.size());
    options.ignore_eos = asked.ignore_eos;
    options.speculative = asked.speculative;
    options.width = asked.width;
    const int64_t* ids = nullptr;
    int64_t n = 0;
    s.asked = !raw;
    int code = raw ? sf_text_encode(s.text, text.data(), text.size(), 1, &ids, &n)
                   : sf_text_ask(s.text, text.data(), text.size(), &ids, &n);
    if (code != SF_OK) return failed(s.said, code, sf_text_error(s.text));
    code = sf_sequence_start(s.session, ids, n, &options);
    failed(s.said, code, sf_sequence_error(s.session));
    if (code == SF_OK) {
      code = sf_text_begin(s.text, stop_list.data(), stop_list.size());
      failed(s.said, code, sf_text_error(s.text));
      if (code != SF_OK) sf_sequence_finish(s.session, nullptr);
    }
    if (code != SF_OK && s.asked) sf_text_take_back(s.text);
    return code;
  });
}

// The next token with the text that it completes, as a Step.
NATIVE(jint, next)(JNIEnv* env, jclass, jlong handle, jobject buffer) {
  Session& s = *of<Session>(handle);
  return guarded(s.said, [&] {
    sf_token token{};
    int code = sf_sequence_next(s.session, &token);
    if (code != SF_OK) return code == SF_END ? code : failed(s.said, code, sf_sequence_error(s.session));
    code = sf_text_push(s.text, token.id, &s.shown, &s.bytes);
    if (code != SF_OK && code != SF_END) return failed(s.said, code, sf_text_error(s.text));
    reply(env, buffer, s, token);
    if (code != SF_END) return int{SF_OK};
    code = sf_sequence_finish(s.session, "stop");  // a stop string is complete
    return failed(s.said, code, sf_sequence_error(s.session));
  });
}

// The text of the last step, where it was longer than the buffer.
NATIVE(jbyteArray, longText)(JNIEnv* env, jclass, jlong handle) {
  return bytes_of(env, of<Session>(handle)->shown, of<Session>(handle)->bytes);
}

NATIVE(void, stop)(JNIEnv*, jclass, jlong handle) { sf_sequence_stop(of<Session>(handle)->session); }

NATIVE(jint, finish)(JNIEnv*, jclass, jlong handle) {
  Session& s = *of<Session>(handle);
  return guarded(s.said, [&] {
    const int code = sf_sequence_finish(s.session, nullptr);
    return failed(s.said, code, sf_sequence_error(s.session));
  });
}

// Closes the answer's text: a Step with what was held back. A question without any answer is forgotten.
NATIVE(jint, endText)(JNIEnv* env, jclass, jlong handle, jboolean answered, jobject buffer) {
  Session& s = *of<Session>(handle);
  return guarded(s.said, [&] {
    s.shown = nullptr, s.bytes = 0;
    const int code = answered || !s.asked ? sf_text_end(s.text, &s.shown, &s.bytes) : sf_text_take_back(s.text);
    reply(env, buffer, s, {});
    return failed(s.said, code, sf_text_error(s.text));
  });
}

NATIVE(jbyteArray, statistics)(JNIEnv* env, jclass, jlong handle) {
  return bytes_of(env, sf_sequence_statistics(of<Session>(handle)->session));
}

NATIVE(jbyteArray, messages)(JNIEnv* env, jclass, jlong handle) {
  const char* json = nullptr;
  size_t bytes = 0;
  return sf_text_messages(of<Session>(handle)->text, &json, &bytes) == SF_OK ? bytes_of(env, json, bytes) : nullptr;
}

NATIVE(jint, reset)(JNIEnv* env, jclass, jlong handle, jbyteArray messages) {
  Session& s = *of<Session>(handle);
  return guarded(s.said, [&] {
    const std::string turns = text_of(env, messages);
    int code = sf_sequence_reset(s.session);
    if (code != SF_OK) return failed(s.said, code, sf_sequence_error(s.session));
    code = sf_text_reset(s.text, turns.data(), turns.size());
    return failed(s.said, code, sf_text_error(s.text));
  });
}

NATIVE(jint, save)(JNIEnv* env, jclass, jlong handle, jbyteArray path) {
  Session& s = *of<Session>(handle);
  return guarded(s.said, [&] {
    const void* note = nullptr;
    size_t bytes = 0;
    int code = sf_text_save(s.text, &note, &bytes);
    if (code != SF_OK) return failed(s.said, code, sf_text_error(s.text));
    code = sf_sequence_save(s.session, text_of(env, path).c_str(), note, bytes);
    return failed(s.said, code, sf_sequence_error(s.session));
  });
}

// Takes tokens and cache back, and (conversation) the turns in the note.
NATIVE(jint, restore)(JNIEnv* env, jclass, jlong handle, jbyteArray path, jboolean conversation) {
  Session& s = *of<Session>(handle);
  return guarded(s.said, [&] {
    int refused = SF_OK;
    struct Conversation {
      sf_text* text;
      int* refused;
    } turns = {s.text, &refused};
    const auto take = [](void* context, const void* note, size_t bytes) {
      const Conversation& own = *static_cast<Conversation*>(context);
      return *own.refused = sf_text_restore(own.text, note, bytes);
    };
    const int code = sf_sequence_restore(s.session, text_of(env, path).c_str(), conversation ? +take : nullptr, &turns);
    return failed(s.said, code, refused != SF_OK ? sf_text_error(s.text) : sf_sequence_error(s.session));
  });
}
