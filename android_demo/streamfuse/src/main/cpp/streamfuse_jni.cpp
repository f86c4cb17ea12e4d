// The native half of the Kotlin library: dev.streamfuse.Native over native/streamfuse.h.
//
// Handles are pointers that Kotlin keeps as long; its locks see to it that none is used after it was freed, and that
// one thread at a time uses a session (stop excepted). Text travels as UTF-8 bytes. Functions return a code of
// streamfuse.h, whose sentence modelError or error gives; none leaves an exception pending or a reference behind.
#include <jni.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <new>
#include <string>
#include <vector>

#include "streamfuse.h"

#define NATIVE(type, name) extern "C" JNIEXPORT type JNICALL Java_dev_streamfuse_Native_##name

namespace {

struct Session {
  sf_session* session = nullptr;
  sf_piece piece{};  // the last one: its text may not have fitted into the reply
};

// How Kotlin's direct buffer is laid out; Reply.kt has the same places. A step's text lies behind the step.
struct Step {
  int64_t bytes, id;
  int32_t source, channel;
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

// Bytes of Java's, closed by a zero byte; `c_str` is null where Java has null.
class Text {
 public:
  Text(JNIEnv* env, jbyteArray bytes) : is_null_(bytes == nullptr) {
    if (is_null_) return;
    text_.resize(static_cast<size_t>(env->GetArrayLength(bytes)));
    env->GetByteArrayRegion(bytes, 0, static_cast<jsize>(text_.size()), reinterpret_cast<jbyte*>(text_.data()));
  }
  Text(JNIEnv* env, jobjectArray all, jsize at)
      : Text(env, static_cast<jbyteArray>(env->GetObjectArrayElement(all, at))) {}
  const char* c_str() const { return is_null_ ? nullptr : text_.c_str(); }
  size_t size() const { return text_.size(); }

 private:
  bool is_null_;
  std::string text_;
};

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

// The JSON list that `get` returns; null if it fails.
jbyteArray list_of(JNIEnv* env, jlong handle, int (*get)(sf_session*, const char**, size_t*)) {
  const char* json = nullptr;
  size_t bytes = 0;
  return get(of<Session>(handle)->session, &json, &bytes) == SF_OK ? bytes_of(env, json, bytes) : nullptr;
}

// Runs `body`, which returns a code. Where this file finds no memory no handle has the sentence, so the code is
// negative.
template <typename Body>
int guarded(Body body) noexcept {
  try {
    return body();
  } catch (const std::exception&) {
    return -SF_OUT_OF_MEMORY;
  }
}

}  // namespace

// ---- a model ----

// Puts the handle into the reply's id, also where it fails; 0 where memory is out.
NATIVE(jint, openModel)
(JNIEnv* env, jclass, jbyteArray folder, jint threads, jboolean check_hashes, jbyteArray key, jbyteArray cost_folder,
 jbyteArray memory_file, jlong progress, jobject buffer) {
  sf_model* model = nullptr;
  const int code = guarded([&] {
    const Text path(env, folder), line(env, key), costs(env, cost_folder), memory(env, memory_file);
    sf_model_options options{};
    options.size = sizeof options;
    options.threads = threads;
    options.skip_hashes = !check_hashes;
    options.public_key = line.c_str();
    options.cost_folder = costs.c_str();
    options.memory_file = memory.c_str();
    options.progress = of<sf_progress>(progress);
    return sf_model_load(path.c_str(), &options, &model);
  });
  in<Step>(env, buffer)->id = reinterpret_cast<int64_t>(model);
  return code;
}

NATIVE(jlong, newProgress)(JNIEnv*, jclass) { return reinterpret_cast<jlong>(sf_progress_new()); }

NATIVE(void, freeProgress)(JNIEnv*, jclass, jlong handle) { sf_progress_free(of<sf_progress>(handle)); }

NATIVE(jdouble, progress)(JNIEnv*, jclass, jlong handle) { return sf_progress_fraction(of<sf_progress>(handle)); }

NATIVE(void, cancelProgress)(JNIEnv*, jclass, jlong handle) { sf_progress_cancel(of<sf_progress>(handle)); }

// Puts the sizes into the buffer, and after them the message if it fails.
NATIVE(jint, estimate)(JNIEnv* env, jclass, jbyteArray folder, jobject buffer) {
  return guarded([&] {
    sf_estimate found{};
    found.size = sizeof found;
    int64_t* const sizes = in<int64_t>(env, buffer);
    const size_t room = static_cast<size_t>(env->GetDirectBufferCapacity(buffer)) - sizeof(Step);
    const int code = sf_model_estimate(Text(env, folder).c_str(), &found, reinterpret_cast<char*>(sizes + 3), room);
    sizes[0] = found.weights_bytes, sizes[1] = found.tables_bytes, sizes[2] = found.cache_bytes;
    return code;
  });
}

NATIVE(jint, verifyManifest)(JNIEnv* env, jclass, jbyteArray folder, jbyteArray key, jobject buffer) {
  return guarded([&] {
    int64_t* const sizes = in<int64_t>(env, buffer);
    const size_t room = static_cast<size_t>(env->GetDirectBufferCapacity(buffer)) - sizeof(Step);
    return sf_model_verify_manifest(Text(env, folder).c_str(), Text(env, key).c_str(),
                                    reinterpret_cast<char*>(sizes + 3), room);
  });
}

NATIVE(void, closeModel)(JNIEnv*, jclass, jlong handle) { sf_model_free(of<sf_model>(handle)); }

NATIVE(jbyteArray, modelError)(JNIEnv* env, jclass, jlong handle) {
  return bytes_of(env, sf_model_error(of<sf_model>(handle)));
}

NATIVE(jbyteArray, manifest)(JNIEnv* env, jclass, jlong handle) {
  return bytes_of(env, sf_model_manifest(of<sf_model>(handle)));
}

NATIVE(jbyteArray, description)(JNIEnv* env, jclass, jlong handle) {
  return bytes_of(env, sf_model_engine(of<sf_model>(handle)));
}

NATIVE(jint, forget)(JNIEnv*, jclass, jlong handle) { return sf_model_forget(of<sf_model>(handle)); }

// Puts the code into the buffer.
NATIVE(jbyteArray, selfTest)(JNIEnv* env, jclass, jlong handle, jobject buffer) {
  const char* json = nullptr;
  const int code = sf_model_self_test(of<sf_model>(handle), nullptr, &json);
  *in<int32_t>(env, buffer) = code;
  return code == SF_OK ? bytes_of(env, json) : nullptr;
}

NATIVE(jlong, countTokens)(JNIEnv* env, jclass, jlong handle, jbyteArray bytes) {
  int64_t n = 0;
  const int code = guarded([&] {
    const Text text(env, bytes);
    return sf_model_count_tokens(of<sf_model>(handle), text.c_str(), text.size(), &n);
  });
  return code == SF_OK ? n : -std::abs(code);
}

NATIVE(jdouble, loadMs)(JNIEnv*, jclass, jlong handle) { return sf_model_load_ms(of<sf_model>(handle)); }

NATIVE(jint, defaults)(JNIEnv* env, jclass, jlong handle, jobject buffer) {
  sf_options o{};
  o.size = sizeof o;
  const int code = sf_model_default_options(of<sf_model>(handle), &o);
  const int64_t seed = static_cast<int64_t>(o.seed);
  const int32_t chats = sf_model_can_chat(of<sf_model>(handle));
  *in<Options>(env, buffer) = {o.max_new_tokens, o.temperature, o.top_k, o.top_p, o.min_p, o.repetition_penalty, seed,
                               o.ignore_eos,     o.speculative, o.width, chats};
  return code;
}

NATIVE(jbyteArray, backends)(JNIEnv* env, jclass) { return bytes_of(env, sf_backends()); }

// ---- a session ----

// Puts the handle into the reply's id, also where it fails; 0 where memory is out.
NATIVE(jint, newSession)
(JNIEnv* env, jclass, jlong model, jboolean chat, jobjectArray all, jint context_policy, jobject buffer) {
  Session* session = new (std::nothrow) Session;
  in<Step>(env, buffer)->id = reinterpret_cast<int64_t>(session);
  if (session == nullptr) return -SF_OUT_OF_MEMORY;
  return guarded([&] {
    const Text system(env, all, 0), history(env, all, 1), tools(env, all, 2), variables(env, all, 3),
        adapter(env, all, 4);
    const sf_session_options options{sizeof options, system.c_str(), system.size(),     history.c_str(),
                                     history.size(), nullptr,        nullptr,           0.0,
                                     tools.c_str(),  tools.size(),   variables.c_str(), variables.size(),
                                     context_policy, adapter.c_str()};
    return (chat ? sf_chat_new : sf_completion_new)(of<sf_model>(model), &options, &session->session);
  });
}

NATIVE(void, freeSession)(JNIEnv*, jclass, jlong handle) {
  sf_session_free(of<Session>(handle)->session);
  delete of<Session>(handle);
}

NATIVE(jbyteArray, error)(JNIEnv* env, jclass, jlong handle) {
  return bytes_of(env, sf_session_error(of<Session>(handle)->session));
}

// Begins an answer to the first of the texts, with the others and the Options in the buffer.
NATIVE(jint, start)
(JNIEnv* env, jclass, jlong handle, jboolean results, jobjectArray all, jlongArray stop_ids, jobject buffer) {
  return guarded([&] {
    const Options o = *in<Options>(env, buffer);
    const Text text(env, all, 0), stops(env, all, 1), schema(env, all, 2), regex(env, all, 3), grammar(env, all, 4),
        choice(env, all, 5);
    const jsize count = env->GetArrayLength(stop_ids);
    std::vector<int64_t> ids(static_cast<size_t>(count));
    env->GetLongArrayRegion(stop_ids, 0, count, reinterpret_cast<jlong*>(ids.data()));
    sf_options sampling{};
    sampling.size = sizeof sampling;
    sampling.max_new_tokens = o.max_new_tokens;
    sampling.temperature = o.temperature, sampling.top_k = o.top_k, sampling.top_p = o.top_p, sampling.min_p = o.min_p;
    sampling.repetition_penalty = o.repetition_penalty, sampling.seed = static_cast<uint64_t>(o.seed);
    sampling.stop_ids = ids.data(), sampling.stop_count = count, sampling.ignore_eos = o.ignore_eos;
    sampling.speculative = o.speculative, sampling.width = o.width;
    const sf_answer_options options{sizeof options,  &sampling,      stops.c_str(), stops.size(),
                                    schema.c_str(),  schema.size(),  regex.c_str(), regex.size(),
                                    grammar.c_str(), grammar.size(), choice.c_str()};
    const auto begin = results ? sf_session_start_tool_results : sf_session_start;
    return begin(of<Session>(handle)->session, text.c_str(), text.size(), &options);
  });
}

// The next piece as a Step; its text behind it, or left to `longText` where it does not fit.
NATIVE(jint, next)(JNIEnv* env, jclass, jlong handle, jobject buffer) {
  Session& own = *of<Session>(handle);
  const int code = sf_session_next(own.session, &own.piece);
  if (code != SF_OK) return code;
  const size_t room = static_cast<size_t>(env->GetDirectBufferCapacity(buffer)) - sizeof(Step);
  Step* step = in<Step>(env, buffer);
  *step = {static_cast<int64_t>(own.piece.bytes), own.piece.token, own.piece.source, own.piece.channel};
  if (own.piece.bytes > 0 && own.piece.bytes <= room) std::memcpy(step + 1, own.piece.text, own.piece.bytes);
  return code;
}

NATIVE(jbyteArray, longText)(JNIEnv* env, jclass, jlong handle) {
  return bytes_of(env, of<Session>(handle)->piece.text, of<Session>(handle)->piece.bytes);
}

NATIVE(void, stop)(JNIEnv*, jclass, jlong handle) { sf_session_stop(of<Session>(handle)->session); }

NATIVE(jint, finish)(JNIEnv*, jclass, jlong handle) { return sf_session_finish(of<Session>(handle)->session); }

NATIVE(jbyteArray, statistics)(JNIEnv* env, jclass, jlong handle) {
  return bytes_of(env, sf_session_statistics(of<Session>(handle)->session));
}

NATIVE(jbyteArray, messages)(JNIEnv* env, jclass, jlong handle) { return list_of(env, handle, sf_session_messages); }

NATIVE(jbyteArray, toolCalls)(JNIEnv* env, jclass, jlong handle) { return list_of(env, handle, sf_session_tool_calls); }

NATIVE(jlong, usedTokens)(JNIEnv*, jclass, jlong handle) {
  return sf_session_used_tokens(of<Session>(handle)->session);
}

NATIVE(jint, reset)(JNIEnv*, jclass, jlong handle) { return sf_session_reset(of<Session>(handle)->session); }

NATIVE(jint, trim)(JNIEnv*, jclass, jlong handle) { return sf_session_trim(of<Session>(handle)->session); }

NATIVE(jint, save)(JNIEnv* env, jclass, jlong handle, jbyteArray path) {
  return guarded([&] { return sf_session_save(of<Session>(handle)->session, Text(env, path).c_str()); });
}

NATIVE(jint, restore)(JNIEnv* env, jclass, jlong handle, jbyteArray path) {
  return guarded([&] { return sf_session_restore(of<Session>(handle)->session, Text(env, path).c_str()); });
}
