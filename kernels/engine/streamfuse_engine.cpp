#include "streamfuse_engine.h"

#include <algorithm>
#include <memory>
#include <mutex>
#include <new>
#include <string>

#include "error.h"
#include "ops/bandwidth.h"
#include "ops/team.h"
#include "session.h"

using streamfuse::Failure;
using streamfuse::Session;

struct sf_program {
  std::shared_ptr<const streamfuse::Program> program;
  std::string description;
  std::mutex lock;
  std::unique_ptr<Session> first;  // made at opening, where it shows that all methods load; the first to ask gets it
};

struct sf_session {
  std::mutex lock;
  std::unique_ptr<Session> session;
  bool broken = false;
};

namespace {

thread_local std::string last_error;

[[noreturn]] void bad_argument(const std::string& sentence) { throw Failure(SF_BAD_ARGUMENT, sentence); }

// Runs `body` and turns whatever it throws into a code, with the sentence in last_error.
template <typename Body>
int guarded(bool* broken, Body body) {
  try {
    body();
    return SF_OK;
  } catch (const Failure& failure) {
    last_error = failure.what();
    return failure.code;
  } catch (const std::bad_alloc&) {
    last_error = "out of memory";
    return SF_OUT_OF_MEMORY;
  } catch (const streamfuse::Aborted&) {
    if (broken != nullptr) *broken = true;
    last_error = "an internal check of ExecuTorch failed; the program is damaged or does not fit this engine";
    return SF_BROKEN;
  } catch (const std::exception& other) {
    last_error = other.what();
    return SF_EXECUTION;
  }
}

template <typename Body>
int locked(sf_session* handle, Body body) {
  if (handle == nullptr) return guarded(nullptr, [] { bad_argument("the session is a null pointer"); });
  const std::lock_guard<std::mutex> guard(handle->lock);
  return guarded(&handle->broken, [&] {
    if (handle->broken) throw Failure(SF_BROKEN, "this session failed an internal check before; free it");
    body(*handle->session);
  });
}

}  // namespace

extern "C" {

int sf_open(const char* pte_path, int num_threads, sf_program** out) {
  return guarded(nullptr, [&] {
    if (out == nullptr) bad_argument("open needs a place for the program");
    *out = nullptr;
    if (pte_path == nullptr || *pte_path == 0) bad_argument("open needs the path of a .pte");
    if (num_threads < 0 || num_threads > streamfuse::kMostThreads)
      bad_argument("num_threads must lie between 0 and " + std::to_string(streamfuse::kMostThreads));
    streamfuse::PlatformScope scope;
    auto handle = std::make_unique<sf_program>();
    handle->program = std::make_shared<const streamfuse::Program>(pte_path, num_threads);
    handle->first = std::make_unique<Session>(handle->program);
    handle->description = handle->program->describe();
    *out = handle.release();
  });
}

void sf_close(sf_program* handle) {
  streamfuse::PlatformScope scope;
  delete handle;
}

int sf_describe(sf_program* handle, const char** json) {
  return guarded(nullptr, [&] {
    if (handle == nullptr) bad_argument("the program is a null pointer");
    if (json == nullptr) bad_argument("describe needs a place for its text");
    *json = handle->description.c_str();
  });
}

int sf_new_session(sf_program* handle, sf_session** out) {
  return guarded(nullptr, [&] {
    if (out == nullptr) bad_argument("new_session needs a place for the session");
    *out = nullptr;
    if (handle == nullptr) bad_argument("the program is a null pointer");
    streamfuse::PlatformScope scope;
    auto session = std::make_unique<sf_session>();
    {
      const std::lock_guard<std::mutex> guard(handle->lock);
      session->session = std::move(handle->first);
    }
    if (session->session == nullptr) session->session = std::make_unique<Session>(handle->program);
    *out = session.release();
  });
}

void sf_free_session(sf_session* handle) {
  streamfuse::PlatformScope scope;
  delete handle;
}

int sf_run(sf_session* handle, const char* method, int n, const int64_t* input_ids, const int64_t* position_ids,
           const uint8_t* ancestors, int want_logits) {
  return locked(handle, [&](Session& session) {
    if (method == nullptr) bad_argument("run needs the name of a method");
    session.run(method, n, input_ids, position_ids, ancestors, want_logits != 0);
  });
}

int sf_streams(sf_session* handle, int index) {
  return locked(handle, [&](Session& session) { session.streams(index); });
}

int sf_read(sf_session* handle, sf_results* out) {
  return locked(handle, [&](Session& session) {
    if (out == nullptr) bad_argument("read needs a place for the results");
    *out = session.results();
  });
}

int sf_commit(sf_session* handle, const int32_t* rows, int n) {
  return locked(handle, [&](Session& session) { session.commit(rows, n); });
}

int sf_truncate(sf_session* handle, int64_t length) {
  return locked(handle, [&](Session& session) { session.truncate(length); });
}

int sf_length(sf_session* handle, int64_t* length) {
  return locked(handle, [&](Session& session) {
    if (length == nullptr) bad_argument("length needs a place for its number");
    *length = session.length();
  });
}

int sf_profile(sf_session* handle, int on) {
  return locked(handle, [&](Session& session) { session.profile(on != 0); });
}

int sf_profile_data(sf_session* handle, const void** data, size_t* size) {
  return locked(handle, [&](Session& session) {
    if (data == nullptr || size == nullptr) bad_argument("an argument of profile_data is a null pointer");
    const auto& bytes = session.profile_data();
    *data = bytes.data();
    *size = bytes.size();
  });
}

int sf_waited(double* ms) {
  return guarded(nullptr, [&] {
    if (ms == nullptr) bad_argument("waited needs a place for its number");
    *ms = streamfuse::take_waited_ms();
  });
}

int sf_read_bandwidth(int num_threads, double* gb_per_s) {
  return guarded(nullptr, [&] {
    if (gb_per_s == nullptr) bad_argument("read_bandwidth needs a place for its number");
    if (num_threads < 0 || num_threads > streamfuse::kMostThreads)
      bad_argument("num_threads must lie between 0 and " + std::to_string(streamfuse::kMostThreads));
    streamfuse::limit_team(streamfuse::reserve_team(num_threads));
    *gb_per_s = streamfuse::read_bandwidth();
  });
}

int sf_core_distance(double* ns) {
  return guarded(nullptr, [&] {
    if (ns == nullptr) bad_argument("core_distance needs a place for its number");
    *ns = streamfuse::core_distance_ns();
  });
}

const char* sf_last_error(void) { return last_error.c_str(); }

}  // extern "C"
