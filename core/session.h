// One sequence of tokens on one engine: prefill, then draft, verify, accept and commit until something ends the text.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "plan.h"
#include "sample.h"
#include "statistics.h"
#include "streamfuse_low.h"

namespace streamfuse {

struct Generation {
  int64_t max_new_tokens = 128;
  Sampling sampling;
  std::vector<int64_t> stop_ids;
  bool speculative = true;
  int64_t width = 0;  // 0: planned
};

// At every moment, also after an error of the engine, the cache holds the first `cached()` of `tokens()`; between two
// passes that is all of them but the last, which is the root of the next tree.
class Session {
 public:
  Session(std::shared_ptr<const Model> model, const sf_backend& backend, const sf_sequence_options& options);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // See streamfuse_core.h; all throw Failure.
  void prepare();
  void start(const int64_t* ids, int64_t n, const Generation& generation);
  bool read();               // false where nothing is left to read
  bool next(sf_token& out);  // false where the text has ended
  void finish(const char* reason);
  void stop() { stop_.store(true, std::memory_order_relaxed); }
  void reset();
  void save(const std::string& path, const std::string& note);
  void restore(const std::string& path, const std::function<int(const std::string&)>& take);  // the note, first of all
  std::string statistics() const { return statistics_.json(model_->spec); }
  const char* finish_reason() const { return statistics_.finish_reason.c_str(); }
  const std::vector<int64_t>& tokens() const { return tokens_; }
  int64_t cached() const { return cached_; }

  const Spec& spec() const { return spec_; }

  // Low level: see streamfuse_low.h. Costs come in the order in which the caller's spec names the verify methods.
  void set_costs(const double* first, const double* last, int32_t count, bool frozen);
  void observe(void (*observer)(void*, const sf_pass*), void* context) {
    observer_ = observer, observer_context_ = context;
  }
  void plan_by(void (*planner)(void*, const int64_t*, int64_t, int64_t, sf_step*), void* context) {
    planner_ = planner, planner_context_ = context;
  }

 private:
  double now() const;
  double lap(Phase phase);
  void check(int code) const;
  const char* engine_error() const;
  const char* name_of(int64_t method) const;
  void run(const char* method, int64_t n, bool want_logits);
  bool prefill_pass();
  bool prefill(bool one_pass);
  double learn_costs();
  double timed_pass(int64_t method, int64_t nodes);
  void pass();
  void ask_planner();
  void accept();
  int64_t choose(int64_t place);
  bool ends_text(int64_t token) const;
  bool deliver(sf_token& out);
  void end_block();
  void end(const char* reason);
  void truncate(int64_t length);
  void check_results(int64_t n, bool want_logits) const;
  bool has_streams(const sf_results& results, int64_t index);

  std::shared_ptr<const Model> model_;
  const Spec& spec_;
  sf_backend backend_;
  double (*clock_)(void*);
  void* clock_context_;
  std::string cost_file_, device_;
  Costs costs_;
  Plan plan_;
  Sampler sampler_;
  Statistics statistics_;
  std::atomic<bool> stop_{false};

  std::vector<int64_t> tokens_;
  int64_t cached_ = 0;
  double mark_ = 0.0;  // when the last phase ended

  bool running_ = false;
  Generation generation_;
  int64_t room_ = 0;  // tokens that may still be delivered

  // The block: what the last pass chose, and how much of it was delivered.
  bool block_ = false;
  Step step_;
  const Tree* tree_ = nullptr;
  sf_results results_{};
  std::vector<int64_t> walk_rows_, walk_tokens_;
  std::vector<uint8_t> walk_near_;  // of each token: whether it was a near tie
  int64_t survivor_ = 0;            // of the last accepted node, among the pass's
  int64_t delivered_ = 0;
  bool saw_end_ = false;  // the stop token that ended the text was in it
  const char* reason_ = nullptr;
  double draft_ms_ = 0.0, pass_ms_ = 0.0;

  std::vector<int64_t> ids_, positions_, history_;
  std::vector<uint8_t> ancestors_;
  std::vector<int32_t> rows_;

  void (*observer_)(void*, const sf_pass*) = nullptr;
  void* observer_context_ = nullptr;
  void (*planner_)(void*, const int64_t*, int64_t, int64_t, sf_step*) = nullptr;
  void* planner_context_ = nullptr;
  Tree planned_;
  bool planned_streams_ = false;
  std::vector<int64_t> seen_tokens_, seen_parents_;  // for observer and planner
  std::vector<double> seen_log_probs_;
  std::vector<uint8_t> seen_sources_;
};

}  // namespace streamfuse
