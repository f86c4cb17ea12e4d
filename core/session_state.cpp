// What a session does between texts: it measures what passes cost, is saved, and comes back.
#include "rounding.h"

#include <algorithm>
#include <numeric>

#include "error.h"
#include "saved.h"
#include "session.h"

namespace streamfuse {
namespace {

int put_part(void* to, const void* data, uint64_t bytes) {
  (*static_cast<const Put*>(to))(data, bytes);
  return SF_OK;
}

int get_part(void* from, void* data, uint64_t bytes) {
  return static_cast<SavedFile*>(from)->get(data, bytes) ? SF_OK : SF_BAD_FILE;
}

}  // namespace

double Session::timed_pass(int64_t method, int64_t nodes) {
  std::fill_n(ids_.begin(), nodes, 0);
  std::iota(positions_.begin(), positions_.begin() + nodes, cached_);
  for (int64_t i = 0; i < nodes; ++i)
    for (int64_t j = 0; j < nodes; ++j) ancestors_[static_cast<size_t>(i * nodes + j)] = j <= i;
  if (method == kStreams) {  // of the pass before, which was of decode
    const int32_t root = 0;
    check(backend_.commit(backend_.context, &root, 1));
  }
  const double started = now();
  if (method != kStreams)
    run(name_of(method), nodes, false);
  else if (backend_.streams(backend_.context, 0, 0, &results_) != SF_OK)
    plan_.fail_streams(engine_error());
  const double ms = 1000.0 * (now() - started);
  if (method == kStreams) check(backend_.truncate(backend_.context, cached_));
  return ms;
}

void Session::prepare() {
  stop_.store(false, std::memory_order_relaxed);
  learn_costs();
}

// The milliseconds that it took.
double Session::learn_costs() {
  if (costs_.known() || spec_.verify.empty()) return 0.0;
  finish(nullptr);
  if (cached_ + spec_.widest() > spec_.capacity) truncate(0);  // else behind what is cached, for example restored
  const double started = now();
  const auto run = [this](int64_t method, int64_t nodes) {
    return stop_.load(std::memory_order_relaxed) ? -1.0 : timed_pass(method, nodes);
  };
  if (const std::vector<double> known = model_->costs_of_device.find(device_); !known.empty()) {
    costs_.take(known);
  } else {
    if (!cost_file_.empty()) costs_.load(cost_file_, spec_.identity, device_);
    if (costs_.measure(run) && !cost_file_.empty()) costs_.store(cost_file_, spec_.identity, device_);
  }
  if (costs_.known()) model_->costs_of_device.keep(device_, costs_.table());
  return 1000.0 * (now() - started);
}

void Session::set_costs(const double* first, const double* last, int32_t count, bool frozen) {
  if (count != costs_.count() || first == nullptr || last == nullptr)
    throw Failure(SF_BAD_ARGUMENT,
                  "costs are asked for " + std::to_string(costs_.count()) + " methods, not " + std::to_string(count));
  std::vector<double> ordered[2];
  for (int end = 0; end < 2; ++end) {
    const double* given = end == 0 ? first : last;
    ordered[end].push_back(given[0]);
    for (const int32_t place : spec_.given_places) ordered[end].push_back(given[1 + place]);
    if (spec_.deferred) ordered[end].push_back(given[count - 1]);
  }
  costs_.set(ordered[0].data(), ordered[1].data(), count, frozen);
}

void Session::save(const std::string& path, const std::string& note) {
  finish(nullptr);
  Saved saved;
  saved.identity = spec_.identity, saved.capacity = spec_.capacity, saved.tokens = tokens_, saved.cached = cached_;
  saved.note = note;
  if (backend_.save != nullptr && backend_.bytes_of != nullptr && backend_.load != nullptr && cached_ > 0)
    check(backend_.bytes_of(backend_.context, cached_, &saved.cache_bytes));
  write(saved, path, [&](Put put) {
    if (saved.cache_bytes > 0) check(backend_.save(backend_.context, cached_, put_part, &put));
  });
}

void Session::restore(const std::string& path, const std::function<int(const std::string&)>& take) {
  SavedFile file(path, spec_);
  const Saved& saved = file.saved();
  const bool rows = saved.cache_bytes > 0;
  if (rows) {
    uint64_t bytes = 0;
    if (backend_.load == nullptr || backend_.bytes_of == nullptr)
      throw Failure(SF_BAD_FILE, path + " holds the cache of another engine");
    check(backend_.bytes_of(backend_.context, saved.cached, &bytes));
    if (bytes != saved.cache_bytes) throw Failure(SF_BAD_FILE, path + " holds the cache of another engine");
  }
  if (const int code = take(saved.note); code != SF_OK) throw Failure(code, path + " holds a note that was refused");
  finish(nullptr);
  truncate(0);
  tokens_.clear();
  if (rows) {
    const int code = backend_.load(backend_.context, saved.cached, get_part, &file);
    if (code == SF_BAD_FILE) throw Failure(code, path + " cannot be read, or the engine asks for more than it saved");
    check(code);
    cached_ = saved.cached;
  }
  tokens_.assign(saved.tokens.begin(), saved.tokens.end());
  statistics_.clear();
  plan_.begin(tokens_, 0);
}

}  // namespace streamfuse
