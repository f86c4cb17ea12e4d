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
#include <span>
#include <vector>

#include "java_text.h"
#include "streamfuse.h"

using streamfuse::bytes_of;
using streamfuse::Text;

// A function of dev.streamfuse.Native with these parameters.
#define NATIVE(type, name, ...)                                                                     \
  extern "C" JNIEXPORT type JNICALL Java_dev_streamfuse_Native_##name([[maybe_unused]] JNIEnv* env, \
                                                                      jclass __VA_OPT__(, ) __VA_ARGS__)

namespace {

struct Session {
  sf_session* session = nullptr;
  sf_piece piece{};  // the last one: its text may not have fitted into the reply
};

// How Kotlin's direct buffer is laid out; Reply.kt has the same places. Text, also a message, lies behind the step.
struct Step {
  int64_t bytes, id;
  int32_t source, channel;
  float log_prob;
};
struct Options {
  sf_options sampling;  // Kotlin writes zeros where the sampling has no number
  int32_t can_chat;
};
static_assert(sizeof(Step) == 32 && sizeof(sf_options) == 128, "Reply.kt counts on these sizes");

template <typename T>
T* of(jlong handle) {
  return reinterpret_cast<T*>(handle);
}

sf_session* session_of(jlong handle) { return of<Session>(handle)->session; }

template <typename T>
T* in(JNIEnv* env, jobject buffer) {
  return static_cast<T*>(env->GetDirectBufferAddress(buffer));
}

std::span<char> room_in(JNIEnv* env, jobject buffer) {
  return {in<char>(env, buffer) + sizeof(Step),
          static_cast<size_t>(env->GetDirectBufferCapacity(buffer)) - sizeof(Step)};
}

// The code that `body` returns; negative where memory runs out here, for then no handle has a message.
template <typename Body>
int guarded(Body body) noexcept {
  try {
    return body();
  } catch (const std::exception&) {
    return -SF_OUT_OF_MEMORY;
  }
}

}  // namespace

// Puts the handle into the reply's id, also where it fails; 0 where memory is out.
NATIVE(jint, openModel, jbyteArray folder, jint threads, jboolean check_hashes, jbyteArray key, jbyteArray cost_folder,
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

NATIVE(jlong, newProgress) { return reinterpret_cast<jlong>(sf_progress_new()); }

NATIVE(void, freeProgress, jlong handle) { sf_progress_free(of<sf_progress>(handle)); }

NATIVE(jdouble, progress, jlong handle) { return sf_progress_fraction(of<sf_progress>(handle)); }

NATIVE(void, cancelProgress, jlong handle) { sf_progress_cancel(of<sf_progress>(handle)); }

// Puts the sizes into the buffer, and after them the message if it fails.
NATIVE(jint, estimate, jbyteArray folder, jobject buffer) {
  return guarded([&] {
    sf_estimate found{};
    found.size = sizeof found;
    const std::span<char> message = room_in(env, buffer);
    const int code = sf_model_estimate(Text(env, folder).c_str(), &found, message.data(), message.size());
    const int64_t sizes[] = {found.weights_bytes, found.tables_bytes, found.cache_bytes};
    std::memcpy(in<Step>(env, buffer), sizes, sizeof sizes);
    return code;
  });
}

NATIVE(jint, verifyManifest, jbyteArray folder, jbyteArray key, jobject buffer) {
  return guarded([&] {
    const std::span<char> message = room_in(env, buffer);
    return sf_model_verify_manifest(Text(env, folder).c_str(), Text(env, key).c_str(), message.data(), message.size());
  });
}

NATIVE(void, closeModel, jlong handle) { sf_model_free(of<sf_model>(handle)); }

NATIVE(jbyteArray, modelError, jlong handle) { return bytes_of(env, sf_model_error(of<sf_model>(handle))); }

NATIVE(jbyteArray, manifest, jlong handle) { return bytes_of(env, sf_model_manifest(of<sf_model>(handle))); }

NATIVE(jbyteArray, description, jlong handle) { return bytes_of(env, sf_model_engine(of<sf_model>(handle))); }

NATIVE(jint, forget, jlong handle) { return sf_model_forget(of<sf_model>(handle)); }

// Puts the code into the buffer.
NATIVE(jbyteArray, selfTest, jlong handle, jobject buffer) {
  const char* json = nullptr;
  const int code = sf_model_self_test(of<sf_model>(handle), nullptr, &json);
  *in<int32_t>(env, buffer) = code;
  return code == SF_OK ? bytes_of(env, json) : nullptr;
}

NATIVE(jlong, countTokens, jlong handle, jbyteArray bytes) {
  int64_t n = 0;
  const int code = guarded([&] {
    const Text text(env, bytes);
    return sf_model_count_tokens(of<sf_model>(handle), text.c_str(), text.size(), &n);
  });
  return code == SF_OK ? n : -std::abs(code);
}

NATIVE(jdouble, loadMs, jlong handle) { return sf_model_load_ms(of<sf_model>(handle)); }

NATIVE(jint, defaults, jlong handle, jobject buffer) {
  Options* const options = in<Options>(env, buffer);
  options->sampling.size = sizeof options->sampling;
  const int code = sf_model_default_options(of<sf_model>(handle), &options->sampling);
  options->can_chat = sf_model_can_chat(of<sf_model>(handle));
  return code;
}

NATIVE(jbyteArray, backends) { return bytes_of(env, sf_backends()); }

// Puts the handle into the reply's id, also where it fails; 0 where memory is out.
NATIVE(jint, newSession, jlong model, jboolean chat, jobjectArray all, jint context_policy, jobject buffer) {
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

NATIVE(void, freeSession, jlong handle) {
  sf_session_free(session_of(handle));
  delete of<Session>(handle);
}

NATIVE(jbyteArray, error, jlong handle) { return bytes_of(env, sf_session_error(session_of(handle))); }

NATIVE(jint, prepare, jlong handle) { return sf_session_prepare(session_of(handle)); }

// The log-probabilities of the answer's tokens (float). Writes the status code to the buffer; returns null on failure.
NATIVE(jbyteArray, score, jlong handle, jbyteArray text, jbyteArray answer, jobject buffer) {
  jbyteArray found = nullptr;
  *in<int32_t>(env, buffer) = guarded([&] {
    const Text prompt(env, text), given(env, answer);
    const float* log_probs = nullptr;
    int64_t n = 0;
    const int code = sf_session_score(session_of(handle), prompt.c_str(), prompt.size(), given.c_str(), given.size(),
                                      &log_probs, &n);
    if (code == SF_OK)
      found = bytes_of(env, reinterpret_cast<const char*>(log_probs), static_cast<size_t>(n) * sizeof *log_probs);
    return code;
  });
  return found;
}

// Begins an answer to the first of the texts, with the others and the Options in the buffer.
NATIVE(jint, start, jlong handle, jboolean results, jobjectArray all, jlongArray stop_ids, jobject buffer) {
  return guarded([&] {
    const Text text(env, all, 0), stops(env, all, 1), schema(env, all, 2), regex(env, all, 3), grammar(env, all, 4),
        choice(env, all, 5);
    const jsize count = env->GetArrayLength(stop_ids);
    std::vector<int64_t> ids(static_cast<size_t>(count));
    env->GetLongArrayRegion(stop_ids, 0, count, reinterpret_cast<jlong*>(ids.data()));
    sf_options sampling = in<Options>(env, buffer)->sampling;  // a copy: `ids` ends with this call
    sampling.size = sizeof sampling;
    sampling.stop_ids = ids.data();
    sampling.stop_count = count;
    const sf_answer_options options{sizeof options,  &sampling,      stops.c_str(), stops.size(),
                                    schema.c_str(),  schema.size(),  regex.c_str(), regex.size(),
                                    grammar.c_str(), grammar.size(), choice.c_str()};
    const auto begin = results ? sf_session_start_tool_results : sf_session_start;
    return begin(session_of(handle), text.c_str(), text.size(), &options);
  });
}

// The next piece as a Step; its text behind it, or left to `longText` where it does not fit.
NATIVE(jint, next, jlong handle, jobject buffer) {
  sf_piece& piece = of<Session>(handle)->piece;
  const int code = sf_session_next(session_of(handle), &piece);
  if (code != SF_OK) return code;
  *in<Step>(env, buffer) = {static_cast<int64_t>(piece.bytes), piece.token, piece.source, piece.channel,
                            piece.log_prob};
  const std::span<char> room = room_in(env, buffer);
  if (piece.bytes > 0 && piece.bytes <= room.size()) std::memcpy(room.data(), piece.text, piece.bytes);
  return code;
}

// The most probable tokens at the last piece's position, one after another: id (int32), log-probability (float), length
// of the text in bytes (int32), text. Writes the status code to the buffer; returns null on failure.
NATIVE(jbyteArray, top, jlong handle, jobject buffer) {
  const sf_top_piece* top = nullptr;
  int32_t n = 0;
  const int code = *in<int32_t>(env, buffer) = sf_session_top(session_of(handle), &top, &n);
  if (code != SF_OK) return nullptr;
  jbyteArray found = nullptr;
  guarded([&] {
    std::vector<char> bytes;
    const auto add = [&](const void* from, size_t size) {
      bytes.insert(bytes.end(), static_cast<const char*>(from), static_cast<const char*>(from) + size);
    };
    for (const sf_top_piece& one : std::span(top, static_cast<size_t>(n))) {
      const int32_t token = static_cast<int32_t>(one.token), length = static_cast<int32_t>(one.bytes);
      add(&token, sizeof token);
      add(&one.log_prob, sizeof one.log_prob);
      add(&length, sizeof length);
      add(one.text, one.bytes);
    }
    found = bytes_of(env, bytes.empty() ? "" : bytes.data(), bytes.size());
    return SF_OK;
  });
  return found;
}

NATIVE(jbyteArray, longText, jlong handle) {
  return bytes_of(env, of<Session>(handle)->piece.text, of<Session>(handle)->piece.bytes);
}

NATIVE(void, stop, jlong handle) { sf_session_stop(session_of(handle)); }

NATIVE(jint, finish, jlong handle) { return sf_session_finish(session_of(handle)); }

NATIVE(jbyteArray, statistics, jlong handle) { return bytes_of(env, sf_session_statistics(session_of(handle))); }

NATIVE(jbyteArray, messages, jlong handle) {
  const char* json = nullptr;
  size_t bytes = 0;
  return sf_session_messages(session_of(handle), &json, &bytes) == SF_OK ? bytes_of(env, json, bytes) : nullptr;
}

NATIVE(jbyteArray, toolCalls, jlong handle) {
  const char* json = nullptr;
  size_t bytes = 0;
  return sf_session_tool_calls(session_of(handle), &json, &bytes) == SF_OK ? bytes_of(env, json, bytes) : nullptr;
}

NATIVE(jlong, usedTokens, jlong handle) { return sf_session_used_tokens(session_of(handle)); }

NATIVE(jint, reset, jlong handle) { return sf_session_reset(session_of(handle)); }

NATIVE(jint, trim, jlong handle) { return sf_session_trim(session_of(handle)); }

NATIVE(jint, save, jlong handle, jbyteArray path) {
  return guarded([&] { return sf_session_save(session_of(handle), Text(env, path).c_str()); });
}

NATIVE(jint, restore, jlong handle, jbyteArray path) {
  return guarded([&] { return sf_session_restore(session_of(handle), Text(env, path).c_str()); });
}
