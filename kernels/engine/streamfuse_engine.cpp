#include "streamfuse_engine.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <vector>

#include "delegates.h"
#include "error.h"
#include "guard.h"
#include "ops/bandwidth.h"
#include "ops/team.h"
#include "platform.h"
#include "sequence.h"

using streamfuse::Failure;
using streamfuse::Sequence;

struct sf_program {
  std::shared_ptr<const streamfuse::Program> program;  // null if opening failed
  std::string description, error;
  std::vector<sf_method> verify;  // storage for the spec
  std::mutex lock;
  std::unique_ptr<Sequence> first;  // made at opening to load all methods; the first sf_engine_new takes it
};

struct sf_engine {
  std::mutex lock;
  std::unique_ptr<Sequence> sequence;
  std::string error;
  bool broken = false;
};

namespace {

// For the results of the caller's functions.
void need_ok(int code) {
  if (code != SF_OK) throw Failure(code, "the saved cache cannot be written or read");
}

[[noreturn]] void bad_argument(const std::string& sentence) { throw Failure(SF_BAD_ARGUMENT, sentence); }

// Runs `body`. If a check of ExecuTorch fails, the engine is marked as `broken`.
template <typename Body>
int attempt(std::string& error, bool* broken, Body body) noexcept {
  return streamfuse::guarded(error, [&] {
    try {
      body();
    } catch (const streamfuse::Aborted&) {
      if (broken != nullptr) *broken = true;
      throw Failure(SF_BROKEN,
                    "an internal check of ExecuTorch failed; the program is damaged or does not fit this engine");
    }
    return SF_OK;
  });
}

template <typename Body>
int locked(sf_engine* handle, Body body) noexcept {
  if (handle == nullptr) return SF_BAD_ARGUMENT;
  const std::lock_guard<std::mutex> guard(handle->lock);
  return attempt(handle->error, &handle->broken, [&] {
    if (handle->broken) throw Failure(SF_BROKEN, "this engine failed an internal check before; free it");
    body(*handle->sequence);
  });
}

template <typename Body>
int of_program(sf_program* handle, Body body) noexcept {
  if (handle == nullptr) return SF_BAD_ARGUMENT;
  const std::lock_guard<std::mutex> guard(handle->lock);
  return attempt(handle->error, nullptr, [&] {
    if (handle->program == nullptr) bad_argument("this program could not be opened; close it");
    body();
  });
}

// ---- the function table: the context pointer is an engine ----

int run(void* context, const char* method, int32_t n, const int64_t* ids, const int64_t* positions,
        const uint8_t* ancestors, int32_t want_logits, sf_results* out) {
  return locked(static_cast<sf_engine*>(context), [&](Sequence& sequence) {
    sequence.run(method, n, ids, positions, ancestors, want_logits != 0);
    *out = sequence.results();
  });
}

int streams(void* context, int32_t survivor, int64_t next_token, sf_results* out) {
  return locked(static_cast<sf_engine*>(context), [&](Sequence& sequence) {
    sequence.streams(survivor, next_token);
    *out = sequence.results();
  });
}

int commit(void* context, const int32_t* rows, int32_t n) {
  return sf_engine_commit(static_cast<sf_engine*>(context), rows, n);
}
int truncate(void* context, int64_t length) { return sf_engine_truncate(static_cast<sf_engine*>(context), length); }
int truncatable(void* context, int64_t length, int64_t* longest) {
  return sf_engine_truncatable(static_cast<sf_engine*>(context), length, longest);
}
void idle(void*) { streamfuse::park_workers(); }
void trim(void* context) {
  locked(static_cast<sf_engine*>(context), [](Sequence& sequence) { sequence.trim(); });
}
const char* error_of(void* context) { return sf_engine_error(static_cast<sf_engine*>(context)); }
void release(void* context) { sf_engine_free(static_cast<sf_engine*>(context)); }

int bytes_of(void* context, int64_t length, uint64_t* bytes) {
  return locked(static_cast<sf_engine*>(context), [&](Sequence& sequence) { *bytes = sequence.bytes_of(length); });
}
int save(void* context, int64_t length, int (*put)(void*, const void*, uint64_t), void* to) {
  return locked(static_cast<sf_engine*>(context), [&](Sequence& sequence) {
    sequence.save(length, [&](const void* data, uint64_t bytes) { need_ok(put(to, data, bytes)); });
  });
}
int load(void* context, int64_t length, int (*get)(void*, void*, uint64_t), void* from) {
  return locked(static_cast<sf_engine*>(context), [&](Sequence& sequence) {
    sequence.load(length, [&](void* data, uint64_t bytes) { need_ok(get(from, data, bytes)); });
  });
}

// Makes a program the handle's. Its methods are loaded once, so that their errors are reported now.
void take(sf_program& handle, std::shared_ptr<const streamfuse::Program> program, const sf_watch* watch) {
  handle.first = std::make_unique<Sequence>(program, watch);
  handle.description = program->describe();
  for (const auto& [name, facts] : program->signatures())
    if (name != "prefill" && name != "decode" && name != "draft" && name != streamfuse::kStreams)
      handle.verify.push_back({name.c_str(), static_cast<int32_t>(facts.rows), static_cast<int32_t>(facts.keep),
                               static_cast<int32_t>(facts.carrying)});
  handle.program = std::move(program);
}

}  // namespace

extern "C" {

int sf_program_open(const char* pte_path, int num_threads, const sf_watch* watch, sf_program** out) {
  if (out == nullptr) return SF_BAD_ARGUMENT;
  *out = new (std::nothrow) sf_program;
  if (*out == nullptr) return SF_OUT_OF_MEMORY;
  sf_program& handle = **out;
  return attempt(handle.error, nullptr, [&] {
    if (pte_path == nullptr || *pte_path == 0) bad_argument("open needs the path of a .pte");
    if (num_threads < 0 || num_threads > streamfuse::kMostThreads)
      bad_argument("num_threads must lie between 0 and " + std::to_string(streamfuse::kMostThreads));
    streamfuse::PlatformScope scope;
    take(handle, std::make_shared<const streamfuse::Program>(pte_path, num_threads), watch);
  });
}

int sf_program_adapter(sf_program* whole, const char* name, sf_program** out) {
  if (out == nullptr) return SF_BAD_ARGUMENT;
  *out = new (std::nothrow) sf_program;
  if (*out == nullptr) return SF_OUT_OF_MEMORY;
  sf_program& handle = **out;
  return attempt(handle.error, nullptr, [&] {
    if (whole == nullptr || whole->program == nullptr) bad_argument("an adapter needs a program that was opened");
    if (name == nullptr) bad_argument("the name of an adapter is a null pointer");
    streamfuse::PlatformScope scope;
    take(handle, std::make_shared<const streamfuse::Program>(*whole->program, name), nullptr);
  });
}

void sf_program_close(sf_program* handle) {
  streamfuse::PlatformScope scope;
  delete handle;
}

const char* sf_program_error(const sf_program* handle) {
  return handle == nullptr ? "out of memory" : handle->error.c_str();
}

int sf_program_describe(sf_program* handle, const char** json) {
  return of_program(handle, [&] {
    if (json == nullptr) bad_argument("describe needs a place for its text");
    *json = handle->description.c_str();
  });
}

int sf_program_threads(sf_program* handle, int32_t* threads) {
  return of_program(handle, [&] {
    if (threads == nullptr) bad_argument("threads needs a place for its number");
    *threads = handle->program->threads();
  });
}

int sf_program_spec(sf_program* handle, sf_spec* out) {
  return of_program(handle, [&] {
    if (out == nullptr) bad_argument("spec needs a place for its numbers");
    const streamfuse::Shapes& shapes = handle->program->shapes();
    *out = {};
    out->size = sizeof *out;
    out->capacity = shapes.capacity;
    out->vocab_size = shapes.vocab_size;
    out->num_streams = shapes.num_streams;
    out->top_k = shapes.top_k;
    out->prefill_rows = handle->program->signature("prefill").rows;
    out->verify = handle->verify.data();
    out->verify_count = static_cast<int32_t>(handle->verify.size());
    out->deferred = handle->program->signatures().count(streamfuse::kStreams) > 0;
  });
}

int sf_program_check(sf_program* handle, const sf_spec* manifest) {
  sf_spec own;
  if (const int code = sf_program_spec(handle, &own); code != SF_OK) return code;
  return of_program(handle, [&] {
    if (manifest == nullptr || manifest->size < offsetof(sf_spec, stop_ids)) bad_argument("check needs a spec");
    if (manifest->verify_count < 0 || (manifest->verify_count > 0 && manifest->verify == nullptr))
      bad_argument("the spec's list of verify methods is a null pointer");
    const auto agree = [](const std::string& name, int64_t expected, int64_t actual) {
      if (expected != actual)
        throw Failure(SF_BAD_PROGRAM, name + " is " + std::to_string(expected) + " in the manifest but " +
                                          std::to_string(actual) + " in the program");
    };
    agree("capacity", manifest->capacity, own.capacity);
    agree("vocab_size", manifest->vocab_size, own.vocab_size);
    agree("num_streams", manifest->num_streams, own.num_streams);
    agree("top_k", manifest->top_k, own.top_k);
    agree("prefill_rows", manifest->prefill_rows, own.prefill_rows);
    agree("deferred", manifest->deferred, own.deferred);
    for (int32_t i = 0; i < manifest->verify_count; ++i) {
      const sf_method& expected = manifest->verify[i];
      if (expected.name == nullptr) bad_argument("a verify method of the spec has no name");
      const std::string name = expected.name;
      const sf_method* end = own.verify + own.verify_count;
      const sf_method* found = std::find_if(own.verify, end, [&](const sf_method& m) { return name == m.name; });
      if (found == end) throw Failure(SF_BAD_PROGRAM, "the manifest has " + name + ", which the program does not have");
      agree("rows of " + name, expected.rows, found->rows);
      agree("keep of " + name, expected.keep, found->keep);
      agree("stream_nodes of " + name, expected.carrying, found->carrying);
    }
  });
}

int sf_engine_new(sf_program* handle, sf_engine** out) {
  if (out == nullptr) return SF_BAD_ARGUMENT;
  *out = nullptr;
  return of_program(handle, [&] {
    streamfuse::PlatformScope scope;
    auto engine = std::make_unique<sf_engine>();
    engine->sequence = std::move(handle->first);
    if (engine->sequence == nullptr) engine->sequence = std::make_unique<Sequence>(handle->program);
    *out = engine.release();
  });
}

void sf_engine_free(sf_engine* handle) {
  streamfuse::PlatformScope scope;
  delete handle;
}

const char* sf_engine_error(const sf_engine* handle) {
  return handle == nullptr ? "out of memory" : handle->error.c_str();
}

int sf_engine_backend(sf_engine* handle, sf_backend* out) {
  if (handle == nullptr || out == nullptr) return SF_BAD_ARGUMENT;
  *out = {sizeof *out, handle,   run,  streams, commit, truncate, error_of,
          release,     bytes_of, save, load,    idle,   trim,     truncatable};
  return SF_OK;
}

int sf_engine_run(sf_engine* handle, const char* method, int n, const int64_t* input_ids, const int64_t* position_ids,
                  const uint8_t* ancestors, int want_logits) {
  return locked(handle, [&](Sequence& sequence) {
    if (method == nullptr) bad_argument("run needs the name of a method");
    sequence.run(method, n, input_ids, position_ids, ancestors, want_logits != 0);
  });
}

int sf_engine_streams(sf_engine* handle, int index, int64_t next_token) {
  return locked(handle, [&](Sequence& sequence) { sequence.streams(index, next_token); });
}

int sf_engine_read(sf_engine* handle, sf_results* out) {
  return locked(handle, [&](Sequence& sequence) {
    if (out == nullptr) bad_argument("read needs a place for the results");
    *out = sequence.results();
  });
}

int sf_engine_commit(sf_engine* handle, const int32_t* rows, int n) {
  return locked(handle, [&](Sequence& sequence) { sequence.commit(rows, n); });
}

int sf_engine_truncate(sf_engine* handle, int64_t length) {
  return locked(handle, [&](Sequence& sequence) { sequence.truncate(length); });
}

int sf_engine_truncatable(sf_engine* handle, int64_t length, int64_t* longest) {
  return locked(handle, [&](Sequence& sequence) {
    if (longest == nullptr) bad_argument("truncatable needs a place for its number");
    *longest = sequence.truncatable(length);
  });
}

int sf_engine_length(sf_engine* handle, int64_t* length) {
  return locked(handle, [&](Sequence& sequence) {
    if (length == nullptr) bad_argument("length needs a place for its number");
    *length = sequence.length();
  });
}

int sf_engine_profile(sf_engine* handle, int on) {
  return locked(handle, [&](Sequence& sequence) { sequence.profile(on != 0); });
}

int sf_engine_profile_data(sf_engine* handle, const void** data, size_t* size) {
  return locked(handle, [&](Sequence& sequence) {
    if (data == nullptr || size == nullptr) bad_argument("an argument of profile_data is a null pointer");
    const auto& bytes = sequence.profile_data();
    *data = bytes.data();
    *size = bytes.size();
  });
}

const char* sf_engine_backends(void) {
  try {
    const streamfuse::PlatformScope scope;
    static const std::string text = streamfuse::list_backends();
    return text.c_str();
  } catch (...) {
    return nullptr;
  }
}

double sf_waited_ms(void) { return streamfuse::take_waited_ms(); }

double sf_read_bandwidth(int num_threads, int64_t bytes) {
  if (num_threads < 0 || num_threads > streamfuse::kMostThreads || bytes < 1) return 0.0;
  try {
    streamfuse::limit_team(streamfuse::reserve_team(num_threads));
    return streamfuse::read_bandwidth(bytes);
  } catch (...) {
    return 0.0;
  }
}

double sf_core_distance_ns(void) {
  try {
    return streamfuse::core_distance_ns();
  } catch (...) {
    return 0.0;
  }
}

}  // extern "C"
