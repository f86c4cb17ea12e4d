#include "rounding.h"

#include "engine.h"

#include <algorithm>
#include <numeric>

#include "error.h"
#include "trace.h"

namespace streamfuse {
namespace {

int write_part(void* to, const void* data, uint64_t bytes) {
  (*static_cast<const Engine::Write*>(to))(data, bytes);
  return SF_OK;
}

int read_part(void* from, void* data, uint64_t bytes) {
  return (*static_cast<const Engine::Read*>(from))(data, bytes) ? SF_OK : SF_BAD_FILE;
}

}  // namespace

Engine::Engine(const Spec& spec, Backend backend) : spec_(spec), backend_(std::move(backend)) {
  const size_t rows = static_cast<size_t>(std::max(spec.widest(), spec.prefill_rows));
  ids_.resize(rows);
  positions_.resize(rows);
  ancestors_.resize(rows * rows);
  rows_.reserve(rows);
}

void Engine::check(int code) const {
  if (code != SF_OK) throw Failure(failure_code(code), last_error());
}

const char* Engine::last_error() const {
  const char* sentence = backend_->error != nullptr ? backend_->error(backend_->context) : nullptr;
  return sentence != nullptr && *sentence != 0 ? sentence : "the engine failed without a reason";
}

const char* Engine::name_of(int64_t method) const {
  return method == kDecode ? "decode" : spec_.verify[static_cast<size_t>(method)].name.c_str();
}

void Engine::call(const char* method, int64_t nodes, bool want_logits) {
  const TraceSection section(method);
  results_ = {};
  check(backend_->run(backend_->context, method, static_cast<int32_t>(nodes), ids_.data(), positions_.data(),
                      ancestors_.data(), want_logits, &results_));
}

void Engine::fill_chain(int64_t nodes, int64_t position) {
  std::iota(positions_.begin(), positions_.begin() + nodes, position);
  for (int64_t i = 0; i < nodes; ++i)
    for (int64_t j = 0; j < nodes; ++j) ancestors_[static_cast<size_t>(i * nodes + j)] = j <= i;
}

void Engine::prefill(std::span<const int64_t> tokens) {
  const int64_t n = static_cast<int64_t>(tokens.size());
  std::copy(tokens.begin(), tokens.end(), ids_.begin());
  fill_chain(n, cached_);
  call("prefill", n, false);
  rows_.resize(tokens.size());
  std::iota(rows_.begin(), rows_.end(), 0);
  commit(rows_);
}

const sf_results& Engine::run(int64_t method, const Tree& tree, int64_t nodes, bool want_logits) {
  for (int64_t row = 0; row < nodes; ++row) {
    const Tree::Node& node = tree[row];
    ids_[static_cast<size_t>(row)] = node.token;
    positions_[static_cast<size_t>(row)] = cached_ + node.depth;
    uint8_t* own = ancestors_.data() + row * nodes;
    if (row > 0)
      std::copy_n(ancestors_.data() + node.parent * nodes, nodes, own);
    else
      std::fill_n(own, nodes, uint8_t{0});
    own[row] = 1;
  }
  call(name_of(method), nodes, want_logits);
  check_results(method, nodes, want_logits);
  return results_;
}

void Engine::run_chain(int64_t method, int64_t nodes) {
  std::fill_n(ids_.begin(), nodes, 0);
  fill_chain(nodes, cached_);
  call(name_of(method), nodes, false);
}

void Engine::check_results(int64_t method, int64_t nodes, bool want_logits) const {
  const sf_results& r = results_;
  const bool verifies = method != kDecode;
  if (r.survivors < 1 || r.survivors > nodes || r.best == nullptr || (verifies && r.kept == nullptr) ||
      (want_logits && (r.logits == nullptr || r.vocab_size != spec_.vocab_size)))
    throw Failure(SF_EXECUTION, std::string("the engine's results of ") + name_of(method) + " are incomplete");
  bool root = !verifies;
  for (int64_t i = 0; verifies && i < r.survivors; ++i) {
    if (r.kept[i] < 0 || r.kept[i] >= nodes)
      throw Failure(SF_EXECUTION, std::string("the engine kept a row that ") + name_of(method) + " did not have");
    root = root || r.kept[i] == 0;
  }
  if (!root) throw Failure(SF_EXECUTION, std::string(name_of(method)) + " did not keep its root");
}

Streams Engine::streams(int64_t survivor, int64_t token) {
  const TraceSection section("streams");
  sf_results found = {};
  found.carrying = 1;
  found.num_streams = static_cast<int32_t>(spec_.num_streams);
  found.top_k = static_cast<int32_t>(spec_.top_k);
  check(backend_->streams(backend_->context, static_cast<int32_t>(survivor), token, &found));
  const Streams streams = streams_of(found, 0);
  if (streams.ids == nullptr) throw Failure(SF_EXECUTION, "the engine gave no streams");
  return streams;
}

Streams Engine::streams_of(const sf_results& r, int64_t survivor) const {
  if (r.stream_ids == nullptr || survivor >= r.carrying) return {};
  if (r.stream_log_probs == nullptr || r.num_streams != spec_.num_streams || r.top_k != spec_.top_k)
    throw Failure(SF_EXECUTION, "the engine's streams do not have the shape that the bundle names");
  const int64_t first = survivor * spec_.num_streams * spec_.top_k;
  return {r.stream_ids + first, r.stream_log_probs + first};
}

void Engine::commit(std::span<const int32_t> rows) {
  check(backend_->commit(backend_->context, rows.data(), static_cast<int32_t>(rows.size())));
  cached_ += static_cast<int64_t>(rows.size());
}

void Engine::truncate(int64_t length) {
  check(backend_->truncate(backend_->context, length));
  cached_ = length;
}

void Engine::drop(int64_t length) {
  cached_ = length;
  truncate(length);
}

void Engine::rewind(int64_t length) {
  int64_t longest = length;
  if (backend_->truncatable != nullptr) {
    check(backend_->truncatable(backend_->context, length, &longest));
    if (longest < 0 || longest > length)
      throw Failure(SF_EXECUTION, "the engine's truncatable must return 0 to " + std::to_string(length) + ", not " +
                                      std::to_string(longest));
  }
  truncate(longest);
}

void Engine::idle() {
  if (backend_->idle != nullptr) backend_->idle(backend_->context);
}

void Engine::trim() {
  if (backend_->trim != nullptr) backend_->trim(backend_->context);
}

uint64_t Engine::saved_bytes(int64_t tokens) const {
  if (backend_->save == nullptr || backend_->load == nullptr || backend_->bytes_of == nullptr || tokens == 0) return 0;
  uint64_t bytes = 0;
  check(backend_->bytes_of(backend_->context, tokens, &bytes));
  return bytes;
}

void Engine::save(const Write& write) const {
  check(backend_->save(backend_->context, cached_, write_part, const_cast<Write*>(&write)));
}

bool Engine::load(int64_t tokens, const Read& read) {
  const int code = backend_->load(backend_->context, tokens, read_part, const_cast<Read*>(&read));
  if (code == SF_OK) {
    cached_ = tokens;
    return true;
  }
  const Failure failure(failure_code(code), last_error());  // the message before the engine is called again
  truncate(0);
  if (code == SF_BAD_FILE) return false;
  throw failure;
}

}  // namespace streamfuse
