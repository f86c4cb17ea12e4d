#include "rounding.h"

#include "streamfuse_low.h"

#include <algorithm>
#include <memory>
#include <new>
#include <string>
#include <utility>

#include "error.h"
#include "guard.h"
#include "numbers.h"
#include "selftest.h"
#include "session.h"
#include "stopwatch.h"

using streamfuse::bad;
using streamfuse::Failure;
using streamfuse::guarded;
using streamfuse::known_part;

struct sf_core_model {
  std::shared_ptr<const streamfuse::Model> model;  // null if opening failed
  std::shared_ptr<streamfuse::Memory> memory;      // null: none
  std::shared_ptr<streamfuse::Prefixes> prefixes;  // null: none
  streamfuse::SharedError error;
};

struct sf_sequence {
  std::unique_ptr<streamfuse::Session> session;  // null if creating it failed
  std::string error, statistics;
};

namespace {

template <typename Body>
int on(sf_sequence* handle, Body body) noexcept {
  if (handle == nullptr) return SF_BAD_ARGUMENT;
  return guarded(handle->error, [&] {
    if (handle->session == nullptr) throw Failure(SF_BROKEN, "this sequence could not be made; free it");
    return body(*handle->session);
  });
}

constexpr int64_t kMemory = 65536, kMostMemory = 1 << 24;  // tokens: the default; the maximum

sf_options defaults() {
  return {sizeof(sf_options), 128, 0.0, 0, 1.0, 0.0, 1.0, 0, nullptr, 0, 0, 1, 0, nullptr, 0, 0, 0, 0, 0};
}

streamfuse::Sampling sampling_of(const sf_options& o) {
  if (!(o.temperature >= 0 && o.temperature < 1e30)) bad("temperature must be at least 0 and below 1e+30");
  if (o.top_k < 0) bad("top_k must be at least 0 (0 = off)");
  if (!(o.top_p > 0 && o.top_p <= 1)) bad("top_p must be above 0 and at most 1 (1 = off)");
  if (!(o.min_p >= 0 && o.min_p <= 1)) bad("min_p must be from 0 (off) to 1");
  if (!(o.repetition_penalty >= 1e-30 && o.repetition_penalty < 1e30))
    bad("repetition_penalty must be at least 1e-30 and below 1e+30 (1 = off)");
  return {o.temperature, o.top_k, o.top_p, o.min_p, o.repetition_penalty, o.seed};
}

streamfuse::Coupling coupling_of(const sf_options* options, int64_t vocab_size, int64_t position) {
  return streamfuse::Coupling(sampling_of(known_part(options, defaults())), vocab_size, position);
}

streamfuse::Generation generation_of(const sf_options* given, const streamfuse::Spec& spec) {
  const sf_options o = known_part(given, defaults());
  streamfuse::Generation generation;
  generation.sampling = sampling_of(o);
  if (o.max_new_tokens < 1) bad("max_new_tokens must be at least 1, not " + std::to_string(o.max_new_tokens));
  if (o.stop_count < 0 || (o.stop_count > 0 && o.stop_ids == nullptr)) bad("stop_ids is a null pointer");
  if (o.width < 0) bad("width must be at least 0 (0 = chosen pass by pass)");
  generation.max_new_tokens = o.max_new_tokens;
  if (o.ignore_eos == 0) generation.stop_ids = spec.stop_ids;
  generation.stop_ids.insert(generation.stop_ids.end(), o.stop_ids, o.stop_ids + o.stop_count);
  generation.speculative = o.speculative != 0;
  generation.width = o.width;
  constexpr int32_t kAll = 1 << SF_STREAMS | 1 << SF_LOOKUP | 1 << SF_TABLE | 1 << SF_MEMORY;
  if ((o.sources & ~kAll) != 0) bad("sources may have the bits of SF_STREAMS, SF_LOOKUP, SF_TABLE and SF_MEMORY only");
  generation.sources = o.sources;
  if (o.top_log_probs < 0 || o.top_log_probs > SF_TOP_LOG_PROBS)
    bad("top_log_probs must be between 0 and " + std::to_string(SF_TOP_LOG_PROBS) + ", not " +
        std::to_string(o.top_log_probs));
  generation.top_log_probs = o.top_log_probs;
  generation.log_probs = o.log_probs != 0 || o.top_log_probs > 0;
  if (o.dropped_turns < 0 || o.dropped_tokens < 0) bad("dropped_turns and dropped_tokens must be at least 0");
  generation.dropped_turns = o.dropped_turns;
  generation.dropped_tokens = o.dropped_tokens;
  return generation;
}

void check_engine(const streamfuse::Backend& engine, const streamfuse::Spec& spec) {
  if (engine->run == nullptr || engine->commit == nullptr || engine->truncate == nullptr)
    bad("an engine needs run, commit and truncate");
  if (spec.deferred && engine->streams == nullptr) bad("the bundle is deferred, but the engine has no streams");
}

int64_t copy_tree(const streamfuse::Tree& tree, int64_t* tokens, int64_t* parents, double* log_probs) {
  for (int64_t row = 0; row < tree.size(); ++row) {
    tokens[row] = tree[row].token;
    parents[row] = tree[row].parent;
    log_probs[row] = tree[row].log_prob;
  }
  return tree.size();
}

}  // namespace

extern "C" {

int sf_core_model_open(const sf_spec* spec, const sf_tensor* tensors, int32_t count, sf_core_model** out) {
  if (out == nullptr) return SF_BAD_ARGUMENT;
  *out = new (std::nothrow) sf_core_model;
  if (*out == nullptr) return SF_OUT_OF_MEMORY;
  return guarded((*out)->error, [&] {
    if (spec == nullptr) bad("open needs a spec");
    if (streamfuse::fuses_products()) throw Failure(SF_BROKEN, streamfuse::kFusesProducts);
    const sf_spec given = known_part(spec, sf_spec{});
    (*out)->model = std::make_shared<const streamfuse::Model>(given, tensors, count);
    return SF_OK;
  });
}

void sf_core_model_close(sf_core_model* model) { delete model; }

int sf_core_model_remember(sf_core_model* model, const char* path, int64_t tokens) {
  if (model == nullptr || model->model == nullptr) return SF_BAD_ARGUMENT;
  return guarded(model->error, [&] {
    if (tokens < 0 || tokens > kMostMemory)
      bad("a memory has 1 to " + std::to_string(kMostMemory) + " tokens (0: " + std::to_string(kMemory) + ")");
    model->memory = std::make_shared<streamfuse::Memory>(path == nullptr ? "" : path, tokens == 0 ? kMemory : tokens,
                                                         model->model->spec.identity, model->model->spec.vocab_size);
    return SF_OK;
  });
}

int sf_core_model_forget(sf_core_model* model) {
  if (model == nullptr || model->model == nullptr) return SF_BAD_ARGUMENT;
  return guarded(model->error, [&] {
    if (model->memory != nullptr) model->memory->forget();
    return SF_OK;
  });
}

int sf_core_model_add_prefix(sf_core_model* model, const char* path) {
  if (model == nullptr || model->model == nullptr) return SF_BAD_ARGUMENT;
  return guarded(model->error, [&] {
    if (path == nullptr) bad("add_prefix needs a path");
    if (model->prefixes == nullptr) model->prefixes = std::make_shared<streamfuse::Prefixes>();
    model->prefixes->add(path, model->model->spec);
    return SF_OK;
  });
}

const char* sf_core_model_error(const sf_core_model* model) {
  return model == nullptr ? "out of memory" : model->error.get();
}

int sf_sequence_new(sf_core_model* model, const sf_backend* backend, const sf_sequence_options* options,
                    sf_sequence** out) {
  streamfuse::Backend given(backend);
  if (out == nullptr) return SF_BAD_ARGUMENT;
  *out = new (std::nothrow) sf_sequence;
  if (*out == nullptr) return SF_OUT_OF_MEMORY;
  return guarded((*out)->error, [&] {
    if (model == nullptr || model->model == nullptr) bad("a sequence needs a model that was opened");
    check_engine(given, model->model->spec);
    const sf_sequence_options known =
        known_part(options, sf_sequence_options{sizeof(sf_sequence_options), nullptr, nullptr, nullptr, nullptr, 0.0});
    (*out)->session =
        std::make_unique<streamfuse::Session>(model->model, std::move(given), known, model->memory, model->prefixes);
    return SF_OK;
  });
}

void sf_sequence_free(sf_sequence* session) { delete session; }

const char* sf_sequence_error(const sf_sequence* session) {
  return session == nullptr ? "out of memory" : session->error.c_str();
}

void sf_default_options(sf_options* out) {
  if (out != nullptr) *out = defaults();
}

int sf_sequence_prepare(sf_sequence* handle) {
  return on(handle, [](streamfuse::Session& session) {
    session.prepare();
    return SF_OK;
  });
}

int sf_sequence_start(sf_sequence* handle, const int64_t* ids, int64_t n, const sf_options* options) {
  // Owned from here on, so that it is released also if the call fails.
  streamfuse::Owned<sf_constraint> constraint(streamfuse::constraint_of(options));
  return on(handle, [&](streamfuse::Session& session) {
    session.start(ids, n, generation_of(options, session.spec()), std::move(constraint));
    return SF_OK;
  });
}

int sf_sequence_read(sf_sequence* handle, int64_t* read, int64_t* total) {
  return on(handle, [&](streamfuse::Session& session) -> int {
    const bool more = session.read();
    if (read != nullptr) *read = session.cached();
    if (total != nullptr) *total = std::max<int64_t>(0, static_cast<int64_t>(session.tokens().size()) - 1);
    return more ? SF_OK : SF_END;
  });
}

int sf_sequence_next(sf_sequence* handle, sf_token* out) {
  return on(handle, [&](streamfuse::Session& session) -> int {
    if (out == nullptr) bad("next needs a place for the token");
    return session.next(*out) ? SF_OK : SF_END;
  });
}

int32_t sf_sequence_top(const sf_sequence* handle, const sf_top_token** out) {
  if (handle == nullptr || handle->session == nullptr || out == nullptr) return 0;
  const std::span<const sf_top_token> top = handle->session->top();
  *out = top.data();
  return static_cast<int32_t>(top.size());
}

int sf_sequence_score(sf_sequence* handle, const int64_t* ids, int64_t n, int64_t from, int32_t top_count,
                      float* log_probs, sf_top_token* top) {
  return on(handle, [&](streamfuse::Session& session) {
    if (log_probs == nullptr || (top == nullptr && top_count != 0)) bad("there is no array for the results");
    session.score(ids, n, from, {top_count, log_probs, top});
    return SF_OK;
  });
}

int sf_sequence_finish(sf_sequence* handle, const char* reason) {
  return on(handle, [&](streamfuse::Session& session) {
    session.finish(reason);
    return SF_OK;
  });
}

void sf_sequence_stop(sf_sequence* handle) {
  if (handle != nullptr && handle->session != nullptr) handle->session->stop();
}

int sf_sequence_reset(sf_sequence* handle) {
  return on(handle, [](streamfuse::Session& session) {
    session.reset();
    return SF_OK;
  });
}

int sf_sequence_trim(sf_sequence* handle) {
  return on(handle, [](streamfuse::Session& session) {
    session.trim();
    return SF_OK;
  });
}

int sf_sequence_tokens(sf_sequence* handle, const int64_t** ids, int64_t* n, int64_t* cached) {
  return on(handle, [&](streamfuse::Session& session) {
    if (ids != nullptr) *ids = session.tokens().data();
    if (n != nullptr) *n = static_cast<int64_t>(session.tokens().size());
    if (cached != nullptr) *cached = session.cached();
    return SF_OK;
  });
}

const char* sf_sequence_statistics(sf_sequence* handle) {
  const int code = on(handle, [&](streamfuse::Session& session) {
    handle->statistics = session.statistics();
    return SF_OK;
  });
  return code == SF_OK ? handle->statistics.c_str() : nullptr;
}

const char* sf_sequence_finish_reason(const sf_sequence* handle) {
  return handle == nullptr || handle->session == nullptr ? "stopped" : handle->session->finish_reason();
}

int sf_sequence_save(sf_sequence* handle, const char* path, const void* note, size_t note_bytes) {
  return on(handle, [&](streamfuse::Session& session) {
    if (path == nullptr) bad("save needs a path");
    if (note == nullptr && note_bytes > 0) bad("save got no note, but its bytes");
    session.save(path, std::string(static_cast<const char*>(note), note_bytes));
    return SF_OK;
  });
}

int sf_sequence_restore(sf_sequence* handle, const char* path, int (*take)(void*, const void*, size_t), void* context) {
  return on(handle, [&](streamfuse::Session& session) {
    if (path == nullptr) bad("restore needs a path");
    const auto given = [&](const std::string& note) {
      return take == nullptr ? SF_OK : take(context, note.data(), note.size());
    };
    session.restore(path, given);
    return SF_OK;
  });
}

// ---- low level ----

void sf_sequence_observe(sf_sequence* handle, void (*observer)(void*, const sf_pass*), void* context) {
  if (handle != nullptr && handle->session != nullptr) handle->session->observer().set(observer, context);
}

int sf_core_model_self_test(sf_core_model* model, const sf_backend* engine, const sf_tensor* arrays, int32_t count,
                            int (*put)(void*, const void*, size_t), void* to) {
  streamfuse::Backend given(engine);
  if (model == nullptr || model->model == nullptr || put == nullptr) return SF_BAD_ARGUMENT;
  return guarded(model->error, [&] {
    check_engine(given, model->model->spec);
    const std::string report = streamfuse::self_test(*model->model, std::move(given), arrays, count);
    return put(to, report.data(), report.size());
  });
}

int sf_sequence_set_costs(sf_sequence* handle, const double* first, const double* last, int32_t count, int32_t frozen) {
  return on(handle, [&](streamfuse::Session& session) {
    session.set_costs(first, last, count, frozen != 0);
    return SF_OK;
  });
}

int64_t sf_grow_streams(sf_core_model* handle, int64_t root, const int64_t* stream_ids, const float* stream_log_probs,
                        int64_t position, const sf_options* options, int64_t width, int64_t depth, int64_t* tokens,
                        int64_t* parents, double* log_probs) {
  if (handle == nullptr || handle->model == nullptr) return -SF_BAD_ARGUMENT;
  int64_t rows = 0;
  const int code = guarded(handle->error, [&] {
    if (root < 0 || root >= handle->model->spec.vocab_size) bad("the root lies outside the vocabulary");
    streamfuse::StreamGrower grower(*handle->model);
    streamfuse::Tree tree;
    streamfuse::Guide unrestricted;
    const auto coupling = coupling_of(options, handle->model->spec.vocab_size, position);
    grower.grow(root, stream_ids, stream_log_probs, width, depth, coupling, unrestricted, tree);
    rows = copy_tree(tree, tokens, parents, log_probs);
    return SF_OK;
  });
  return code == SF_OK ? rows : -code;
}

int64_t sf_grow_table(sf_core_model* handle, const int64_t* text, int64_t n, const sf_options* options, int64_t width,
                      int64_t depth, int64_t* tokens, int64_t* parents, double* log_probs) {
  if (handle == nullptr || handle->model == nullptr || text == nullptr || n < 1) return -SF_BAD_ARGUMENT;
  int64_t rows = 0;
  const int code = guarded(handle->error, [&] {
    const int64_t vocabulary = handle->model->spec.vocab_size;
    for (int64_t i = 0; i < n; ++i)
      if (text[i] < 0 || text[i] >= vocabulary) bad("a token lies outside the vocabulary");
    streamfuse::TableGrower grower(*handle->model);
    streamfuse::Tree tree;
    streamfuse::Guide unrestricted;
    const auto coupling = coupling_of(options, vocabulary, n);
    grower.grow({text, static_cast<size_t>(n)}, width, depth, coupling, unrestricted, tree);
    rows = copy_tree(tree, tokens, parents, log_probs);
    return SF_OK;
  });
  return code == SF_OK ? rows : -code;
}

int64_t sf_grow_lookup(const int64_t* text, int64_t n, int64_t vocab_size, const sf_options* options, int64_t width,
                       int64_t depth, int64_t* tokens, int64_t* parents, double* log_probs) {
  if (text == nullptr || n < 1 || width < 1) return -SF_BAD_ARGUMENT;
  int64_t rows = 0;
  std::string error;
  const int code = guarded(error, [&] {
    const std::vector<int64_t> given(text, text + n);
    streamfuse::LookUp look_up(n, width);
    streamfuse::Tree tree;
    streamfuse::Guide unrestricted;
    tree.set_root(given.back());
    look_up.begin(given, 0);
    look_up.join(width, depth, coupling_of(options, vocab_size, n), unrestricted, tree);
    rows = copy_tree(tree, tokens, parents, log_probs);
    return SF_OK;
  });
  return code == SF_OK ? rows : -code;
}

int64_t sf_choose(const float* logits, int64_t vocab_size, const int64_t* history, int64_t n, int64_t position,
                  const sf_options* options, int32_t* near_tie) {
  std::string error;
  int64_t token = 0;
  const int code = guarded(error, [&] {
    streamfuse::Sampler sampler(vocab_size);
    token = sampler.choose(sampling_of(known_part(options, defaults())), logits, {history, static_cast<size_t>(n)},
                           position);
    if (near_tie != nullptr) *near_tie = sampler.near_tie;
    return SF_OK;
  });
  return code == SF_OK ? token : -code;
}

double sf_noise(uint64_t seed, int64_t position, int64_t token, int64_t vocab_size) {
  const streamfuse::DefaultFloats floats;
  return streamfuse::Noise(seed, position, vocab_size).of(token);
}

void sf_exp(const double* x, double* y, int64_t n) {
  const streamfuse::DefaultFloats floats;
  for (int64_t i = 0; i < n; ++i) y[i] = streamfuse::exponential(x[i]);
}

void sf_log(const double* x, double* y, int64_t n) {
  const streamfuse::DefaultFloats floats;
  for (int64_t i = 0; i < n; ++i) y[i] = streamfuse::logarithm(x[i]);
}

double sf_cold_clock_now(void* clock) {
  auto& cold = *static_cast<sf_cold_clock*>(clock);
  const double now = streamfuse::monotonic_seconds();
  if (now - cold.last > cold.pass_s) {
    cold.evict(cold.context);
    cold.hidden += streamfuse::monotonic_seconds() - now;
  }
  cold.last = streamfuse::monotonic_seconds();
  return cold.last - cold.hidden;
}

}  // extern "C"
