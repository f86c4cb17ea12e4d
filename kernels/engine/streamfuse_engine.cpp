#include "streamfuse_engine.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <vector>

#include "error.h"
#include "graph.h"

using streamfuse::Failure;
using streamfuse::Graph;
using streamfuse::GraphMethod;
using streamfuse::Output;

struct sf_engine {
  std::mutex lock;
  std::unique_ptr<Graph> graph;
  std::string description;
  std::string error;
  bool broken = false;
  int64_t length = 0;

  // The last run; null where its rows can no longer be read or committed.
  GraphMethod* ran = nullptr;
  int64_t ran_at_length = 0;
  bool can_commit = false;
  std::vector<int64_t> kept;  // real surviving rows
};

namespace {

thread_local std::string open_error;

[[noreturn]] void bad_argument(const std::string& sentence) { throw Failure(SF_BAD_ARGUMENT, sentence); }

// Runs `body` and turns whatever it throws into a code, with the sentence in `error`.
template <typename Body>
int guarded(std::string& error, bool* broken, Body body) {
  try {
    body();
    return SF_OK;
  } catch (const Failure& failure) {
    error = failure.what();
    return failure.code;
  } catch (const std::bad_alloc&) {
    error = "out of memory";
    return SF_OUT_OF_MEMORY;
  } catch (const streamfuse::Aborted&) {
    if (broken != nullptr) *broken = true;
    error = "an internal check of ExecuTorch failed; the program is damaged or does not fit this engine";
    return SF_BROKEN;
  } catch (const std::exception& other) {
    error = other.what();
    return SF_EXECUTION;
  }
}

template <typename Body>
int locked(sf_engine* engine, Body body) {
  if (engine == nullptr) return SF_BAD_ARGUMENT;
  const std::lock_guard<std::mutex> guard(engine->lock);
  return guarded(engine->error, &engine->broken, [&] {
    if (engine->broken) throw Failure(SF_BROKEN, "this engine failed an internal check before; close it");
    body();
  });
}

void check_rows(const streamfuse::Shapes& shapes, const GraphMethod& method, int n, const int64_t* ids, const int64_t* positions,
                const uint8_t* ancestors) {
  if (n < 1 || n > method.rows)
    bad_argument("method " + method.name + " takes 1 to " + std::to_string(method.rows) + " rows, not " + std::to_string(n));
  if (ids == nullptr || positions == nullptr || ancestors == nullptr) bad_argument("an input of run is a null pointer");
  for (int i = 0; i < n; ++i) {
    if (ids[i] < 0 || (shapes.vocab_size > 0 && ids[i] >= shapes.vocab_size))
      bad_argument("token " + std::to_string(ids[i]) + " in row " + std::to_string(i) + " lies outside the vocabulary of " +
                   std::to_string(shapes.vocab_size));
    if (positions[i] < 0 || positions[i] >= shapes.capacity)
      bad_argument("position " + std::to_string(positions[i]) + " in row " + std::to_string(i) + " lies outside the capacity of " +
                   std::to_string(shapes.capacity));
    const uint8_t* row = ancestors + static_cast<size_t>(i) * n;
    if (row[i] == 0) bad_argument("row " + std::to_string(i) + " is not its own ancestor");
    for (int j = i + 1; j < n; ++j)
      if (row[j] != 0) bad_argument("row " + std::to_string(i) + " has the later row " + std::to_string(j) + " as an ancestor");
  }
}

void fill_inputs(GraphMethod& method, int n, const int64_t* ids, const int64_t* positions, const uint8_t* ancestors, int64_t length) {
  const int64_t rows = method.rows;
  std::fill_n(method.input_ids, rows, 0);
  std::fill_n(method.position_ids, rows, 0);
  std::fill_n(method.ancestors, rows * rows, false);
  std::copy_n(ids, n, method.input_ids);
  std::copy_n(positions, n, method.position_ids);
  for (int i = 0; i < n; ++i)
    for (int j = 0; j <= i; ++j) method.ancestors[i * rows + j] = ancestors[static_cast<size_t>(i) * n + j] != 0;
  *method.cache_length = length;
}

void read_survivors(const GraphMethod& method, int n, std::vector<int64_t>& kept) {
  kept.clear();
  if (!method.has_kept) {
    for (int i = 0; i < n; ++i) kept.push_back(i);
    return;
  }
  const int64_t* rows = static_cast<const int64_t*>(method.kept.data);
  for (int64_t i = 0; i < method.keep && rows[i] >= 0 && rows[i] < n; ++i) kept.push_back(rows[i]);
  if (kept.empty() || kept[0] != 0) throw Failure(SF_EXECUTION, "method " + method.name + " did not keep its root");
  if (method.keep == method.rows)
    for (size_t i = 0; i < kept.size(); ++i)
      if (kept[i] != static_cast<int64_t>(i))
        throw Failure(SF_EXECUTION, "method " + method.name + " prunes nothing, but its kept rows are not in order");
}

void commit_rows(sf_engine* engine, const int32_t* rows, int n) {
  if (!engine->can_commit) throw Failure(SF_NOT_KEPT, "there is no run to commit from");
  const auto& shapes = engine->graph->shapes();
  if (n < 0 || (n > 0 && rows == nullptr)) bad_argument("commit takes a list of rows");
  std::vector<int64_t> slots;
  for (int i = 0; i < n; ++i) {
    const auto found = std::find(engine->kept.begin(), engine->kept.end(), rows[i]);
    if (found == engine->kept.end()) throw Failure(SF_NOT_KEPT, "row " + std::to_string(rows[i]) + " of the last run did not survive");
    slots.push_back(found - engine->kept.begin());
  }
  if (engine->length + n > shapes.capacity)
    throw Failure(SF_CONTEXT_FULL, "the cache holds " + std::to_string(engine->length) + " of " + std::to_string(shapes.capacity) +
                                       " positions and cannot take " + std::to_string(n) + " more");
  // Lower layers give all rows, by row number; layers above the pruner give survivors, by place in `kept`.
  const GraphMethod& method = *engine->ran;
  const size_t floats = static_cast<size_t>(shapes.cache_row());
  for (size_t c = 0; c < engine->graph->n_caches(); ++c) {
    const Output& output = method.new_rows[c];
    const bool by_row = output.shape[0] == method.rows;
    const float* source = static_cast<const float*>(output.data);
    float* target = engine->graph->cache(c) + static_cast<size_t>(engine->length) * floats;
    for (int i = 0; i < n; ++i)
      std::memcpy(target + i * floats, source + static_cast<size_t>(by_row ? rows[i] : slots[i]) * floats, floats * sizeof(float));
  }
  engine->length += n;
}

}  // namespace

extern "C" {

int sf_open(const char* pte_path, int num_threads, sf_engine** out) {
  return guarded(open_error, nullptr, [&] {
    if (out == nullptr) bad_argument("open needs a place for the engine");
    *out = nullptr;
    if (pte_path == nullptr || *pte_path == 0) bad_argument("open needs the path of a .pte");
    if (num_threads < 0 || num_threads > 1024) bad_argument("num_threads must lie between 0 and 1024");
    streamfuse::PlatformScope scope;
    auto engine = std::make_unique<sf_engine>();
    engine->graph = std::make_unique<Graph>(pte_path, num_threads);
    engine->description = engine->graph->describe();
    engine->kept.reserve(static_cast<size_t>(engine->graph->most_rows()));  // its address never changes
    *out = engine.release();
  });
}

int sf_describe(sf_engine* engine, const char** json) {
  return locked(engine, [&] {
    if (json == nullptr) bad_argument("describe needs a place for its text");
    *json = engine->description.c_str();
  });
}

int sf_run(sf_engine* engine, const char* method, int n, const int64_t* input_ids, const int64_t* position_ids,
           const uint8_t* ancestors) {
  return locked(engine, [&] {
    if (method == nullptr) bad_argument("run needs the name of a method");
    GraphMethod& target = engine->graph->method(method);
    check_rows(engine->graph->shapes(), target, n, input_ids, position_ids, ancestors);
    engine->can_commit = false;
    engine->ran = nullptr;
    fill_inputs(target, n, input_ids, position_ids, ancestors, engine->length);
    target.execute();
    read_survivors(target, n, engine->kept);
    engine->ran = &target;
    engine->ran_at_length = engine->length;
    engine->can_commit = true;
  });
}

int sf_output(sf_engine* engine, const char* name, const void** data, int64_t* shape, int* rank, int* dtype) {
  return locked(engine, [&] {
    if (name == nullptr || data == nullptr || shape == nullptr || rank == nullptr || dtype == nullptr)
      bad_argument("an argument of output is a null pointer");
    if (engine->ran == nullptr) throw Failure(SF_NOT_KEPT, "there is no run to read from");
    const GraphMethod& method = *engine->ran;
    const std::string wanted = name;
    const int64_t real = static_cast<int64_t>(engine->kept.size());
    if (wanted == "kept") {
      *data = engine->kept.data();
      shape[0] = real, *rank = 1, *dtype = SF_INT64;
      return;
    }
    const Output* output = wanted == "logits" && method.has_logits             ? &method.logits
                           : wanted == "stream_ids" && method.has_streams       ? &method.stream_ids
                           : wanted == "stream_log_probs" && method.has_streams ? &method.stream_log_probs
                                                                                 : nullptr;
    if (output == nullptr) bad_argument("method " + method.name + " has no output " + wanted);
    *data = output->data;
    *rank = static_cast<int>(output->shape.size());
    *dtype = static_cast<int>(output->dtype);
    std::copy(output->shape.begin(), output->shape.end(), shape);
    shape[0] = real;
  });
}

int sf_commit(sf_engine* engine, const int32_t* rows, int n) {
  return locked(engine, [&] { commit_rows(engine, rows, n); });
}

int sf_truncate(sf_engine* engine, int64_t length) {
  return locked(engine, [&] {
    if (length < 0 || length > engine->length)
      bad_argument("cannot truncate to " + std::to_string(length) + ": the cache holds " + std::to_string(engine->length) + " positions");
    engine->length = length;
    if (length < engine->ran_at_length) engine->can_commit = false;
  });
}

int sf_length(sf_engine* engine, int64_t* length) {
  return locked(engine, [&] {
    if (length == nullptr) bad_argument("length needs a place for its number");
    *length = engine->length;
  });
}

const char* sf_last_error(sf_engine* engine) { return engine == nullptr ? open_error.c_str() : engine->error.c_str(); }

void sf_close(sf_engine* engine) {
  if (engine == nullptr) return;
  streamfuse::PlatformScope scope;
  delete engine;
}

}  // extern "C"
