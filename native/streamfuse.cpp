#include "streamfuse.h"

#include <memory>
#include <new>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "guard.h"
#include "model.h"
#include "progress.h"
#include "session.h"

using streamfuse::bad;
using streamfuse::Failure;
using streamfuse::guarded;
using streamfuse::known_part;
using streamfuse::Owned;
using streamfuse::native::Session;

struct sf_model {
  std::shared_ptr<const streamfuse::native::Model> model;  // null where loading failed
  streamfuse::SharedError error;
  std::string report;  // of the last self-test
};

struct sf_session {
  std::unique_ptr<Session> session;  // null where making it failed
  std::string error;
};

namespace {

const streamfuse::native::Model* loaded(const sf_model* handle) {
  return handle == nullptr ? nullptr : handle->model.get();
}

int new_session(sf_model* model, bool chat, const sf_session_options* options, sf_session** out) {
  sf_session* const handle = out == nullptr ? nullptr : new (std::nothrow) sf_session;
  if (out != nullptr) *out = handle;
  std::string nowhere;
  return guarded(handle == nullptr ? nowhere : handle->error, [&] {
    const sf_session_options known = known_part(options, sf_session_options{});
    streamfuse::Backend own(known.backend);
    if (handle == nullptr) return out == nullptr ? SF_BAD_ARGUMENT : SF_OUT_OF_MEMORY;
    handle->session = std::make_unique<Session>(model == nullptr ? nullptr : model->model, chat, known, std::move(own));
    return SF_OK;
  });
}

// Runs `body` on the session of a handle; its code, if it returns one.
template <typename Body>
int on(sf_session* handle, Body body) noexcept {
  if (handle == nullptr) return SF_BAD_ARGUMENT;
  return guarded(handle->error, [&]() -> int {
    Session* const session = handle->session.get();
    if (session == nullptr) throw Failure(SF_BROKEN, "this session could not be made; free it");
    if constexpr (std::is_void_v<std::invoke_result_t<Body, Session&>>) {
      body(*session);
      return SF_OK;
    } else {
      return body(*session);
    }
  });
}

// Null for options of a version without constraints.
const sf_constraint* constraint_of(const sf_answer_options* given) {
  constexpr size_t kEnd = offsetof(sf_answer_options, sampling) + sizeof(given->sampling);
  return given == nullptr || given->size < kEnd ? nullptr : streamfuse::constraint_of(given->sampling);
}

// Starts an answer by `body`, which gets the options and their constraint.
template <typename Body>
int start(sf_session* handle, const sf_answer_options* options, Body body) noexcept {
  // Owned from here on, so that it is released also if the call fails.
  Owned<sf_constraint> constraint(constraint_of(options));
  return on(handle,
            [&](Session& session) { body(session, known_part(options, sf_answer_options{}), std::move(constraint)); });
}

}  // namespace

extern "C" {

const char* sf_version(void) { return SF_VERSION; }

int32_t sf_abi_version(void) { return SF_ABI_VERSION; }

int sf_model_load(const char* folder, const sf_model_options* options, sf_model** out) {
  if (out == nullptr) return SF_BAD_ARGUMENT;
  *out = new (std::nothrow) sf_model;
  if (*out == nullptr) return SF_OUT_OF_MEMORY;
  return guarded((*out)->error, [&] {
    if (folder == nullptr) bad("a bundle's folder is needed, and it is a null pointer");
    const sf_model_options known = known_part(options, sf_model_options{});
    (*out)->model = std::make_shared<const streamfuse::native::Model>(folder, known);
    return SF_OK;
  });
}

void sf_model_free(sf_model* model) { delete model; }

sf_progress* sf_progress_new(void) { return new (std::nothrow) sf_progress; }

void sf_progress_free(sf_progress* progress) { delete progress; }

double sf_progress_fraction(const sf_progress* progress) {
  return progress == nullptr ? 0.0 : progress->fraction.load();
}

void sf_progress_cancel(sf_progress* progress) {
  if (progress != nullptr) progress->is_cancelled.store(true);
}

int sf_model_estimate(const char* folder, sf_estimate* out, char* message, size_t capacity) {
  return sf_bundle_estimate(folder, out, message, capacity);
}

int sf_model_verify_manifest(const char* folder, const char* public_key, char* message, size_t capacity) {
  return sf_bundle_verify_manifest(folder, public_key, message, capacity);
}

int sf_model_self_test(sf_model* model, const sf_backend* backend, const char** json) {
  streamfuse::Backend own(backend);
  if (loaded(model) == nullptr) return SF_BAD_ARGUMENT;
  return guarded(model->error, [&] {
    if (json == nullptr) bad("self_test needs a place for its report");
    model->report = loaded(model)->self_test(std::move(own));
    *json = model->report.c_str();
    return SF_OK;
  });
}

const char* sf_model_error(const sf_model* model) { return model == nullptr ? "out of memory" : model->error.get(); }

const char* sf_model_manifest(const sf_model* model) {
  return loaded(model) == nullptr ? "" : sf_bundle_manifest(loaded(model)->bundle());
}

const char* sf_model_graph(const sf_model* model) {
  return loaded(model) == nullptr ? "" : sf_bundle_graph(loaded(model)->bundle());
}

const char* sf_model_adapter_name(const sf_model* model, int32_t index) {
  return loaded(model) == nullptr ? nullptr : sf_bundle_adapter_name(loaded(model)->bundle(), index);
}

const char* sf_model_engine(const sf_model* model) {
  return loaded(model) == nullptr ? "{}" : loaded(model)->engine_facts();
}

int32_t sf_model_can_chat(const sf_model* model) { return loaded(model) != nullptr && loaded(model)->can_chat(); }

double sf_model_load_ms(const sf_model* model) { return loaded(model) == nullptr ? 0.0 : loaded(model)->load_ms(); }

int sf_model_forget(sf_model* model) {
  if (loaded(model) == nullptr) return SF_BAD_ARGUMENT;
  return guarded(model->error, [&] {
    loaded(model)->forget();
    return SF_OK;
  });
}

int sf_model_count_tokens(sf_model* model, const char* text, size_t bytes, int64_t* n) {
  if (loaded(model) == nullptr) return SF_BAD_ARGUMENT;
  return guarded(model->error, [&] {
    if (n == nullptr) bad("count_tokens needs a place for the number");
    *n = loaded(model)->count_tokens(text, bytes);
    return SF_OK;
  });
}

int sf_model_spec(const sf_model* model, sf_spec* out) {
  return loaded(model) == nullptr ? SF_BAD_ARGUMENT : sf_bundle_spec(loaded(model)->bundle(), out);
}

int sf_model_default_options(const sf_model* model, sf_options* out) {
  return loaded(model) == nullptr ? SF_BAD_ARGUMENT : sf_bundle_defaults(loaded(model)->bundle(), out);
}

const char* sf_backends(void) { return sf_engine_backends(); }

int sf_chat_new(sf_model* model, const sf_session_options* options, sf_session** out) {
  return new_session(model, true, options, out);
}

int sf_completion_new(sf_model* model, const sf_session_options* options, sf_session** out) {
  return new_session(model, false, options, out);
}

void sf_session_free(sf_session* session) { delete session; }

const char* sf_session_error(const sf_session* session) {
  return session == nullptr ? "out of memory" : session->error.c_str();
}

int sf_session_prepare(sf_session* handle) {
  return on(handle, [](Session& session) { session.prepare(); });
}

int sf_session_start(sf_session* handle, const char* text, size_t bytes, const sf_answer_options* options) {
  return start(handle, options, [&](Session& session, const sf_answer_options& known, Owned<sf_constraint> constraint) {
    session.start(text, bytes, known, std::move(constraint));
  });
}

int sf_session_start_tool_results(sf_session* handle, const char* results, size_t bytes,
                                  const sf_answer_options* options) {
  return start(handle, options, [&](Session& session, const sf_answer_options& known, Owned<sf_constraint> constraint) {
    session.start_tool_results(results, bytes, known, std::move(constraint));
  });
}

int sf_session_tool_calls(sf_session* handle, const char** json, size_t* bytes) {
  return on(handle, [&](Session& session) { session.tool_calls(json, bytes); });
}

int sf_session_start_tokens(sf_session* handle, const int64_t* ids, int64_t n, const sf_answer_options* options) {
  return start(handle, options, [&](Session& session, const sf_answer_options& known, Owned<sf_constraint> constraint) {
    session.start_tokens(ids, n, known, std::move(constraint));
  });
}

int sf_session_score(sf_session* handle, const char* text, size_t bytes, const char* answer, size_t answer_bytes,
                     const float** log_probs, int64_t* n) {
  return on(handle, [&](Session& session) {
    if (log_probs == nullptr || n == nullptr) bad("sf_session_score: log_probs and n must not be NULL");
    if ((text == nullptr && bytes > 0) || (answer == nullptr && answer_bytes > 0))
      bad("sf_session_score: text and answer must not be NULL");
    const std::vector<float>& scores = session.score({text, bytes}, {answer, answer_bytes});
    *log_probs = scores.data();
    *n = static_cast<int64_t>(scores.size());
  });
}

int sf_session_read(sf_session* handle, int64_t* read, int64_t* total) {
  return on(handle, [&](Session& session) { return session.read(read, total) ? SF_OK : SF_END; });
}

int sf_session_next(sf_session* handle, sf_piece* out) {
  return on(handle, [&](Session& session) {
    if (out == nullptr) bad("next needs a place for the piece");
    return session.next(*out) ? SF_OK : SF_END;
  });
}

int sf_session_top(sf_session* handle, const sf_top_piece** out, int32_t* n) {
  return on(handle, [&](Session& session) {
    if (out == nullptr || n == nullptr) bad("sf_session_top: out and n must not be NULL");
    const std::vector<sf_top_piece>& top = session.top();
    *out = top.data();
    *n = static_cast<int32_t>(top.size());
    return SF_OK;
  });
}

void sf_session_stop(sf_session* handle) {
  if (handle != nullptr && handle->session != nullptr) handle->session->stop();
}

int sf_session_finish(sf_session* handle) {
  return on(handle, [](Session& session) { session.finish(); });
}

const char* sf_session_statistics(sf_session* handle) {
  return handle == nullptr || handle->session == nullptr ? nullptr : handle->session->statistics();
}

int sf_session_messages(sf_session* handle, const char** json, size_t* bytes) {
  return on(handle, [&](Session& session) { session.messages(json, bytes); });
}

int sf_session_tokens(sf_session* handle, const int64_t** ids, int64_t* n, int64_t* cached) {
  return on(handle, [&](Session& session) { session.tokens(ids, n, cached); });
}

int64_t sf_session_used_tokens(sf_session* handle) {
  int64_t n = 0;
  on(handle, [&](Session& session) { n = session.used_tokens(); });
  return n;
}

int64_t sf_session_remaining_tokens(sf_session* handle) {
  int64_t n = 0;
  on(handle, [&](Session& session) { n = session.remaining_tokens(); });
  return n;
}

int sf_session_reset(sf_session* handle) {
  return on(handle, [](Session& session) { session.reset(); });
}

int sf_session_trim(sf_session* handle) {
  return on(handle, [](Session& session) { session.trim(); });
}

int sf_session_save(sf_session* handle, const char* path) {
  return on(handle, [&](Session& session) {
    if (path == nullptr) bad("save needs a path");
    session.save(path);
  });
}

int sf_session_restore(sf_session* handle, const char* path) {
  return on(handle, [&](Session& session) {
    if (path == nullptr) bad("restore needs a path");
    session.restore(path);
  });
}

}  // extern "C"
