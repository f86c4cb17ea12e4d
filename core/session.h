// One sequence of tokens on one engine: prefill, then draft, verify, accept and commit until something ends the text.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "accept.h"
#include "constraint.h"
#include "engine.h"
#include "generation.h"
#include "measure.h"
#include "observer.h"
#include "planner.h"
#include "prefixes.h"
#include "score.h"
#include "statistics.h"
#include "stopwatch.h"

namespace streamfuse {

// Invariant, also after an error of the engine: the cache contains the first `cached()` of `tokens()`. Between two
// passes these are all tokens except the last, which is the root of the next tree. The last tokens of a text that
// needed no pass (`certain_`) are not in the cache either; the next text processes them with its prompt.
class Session {
 public:
  // Memory and prefixes may be null.
  Session(std::shared_ptr<const Model> model, Backend backend, const sf_sequence_options& options,
          std::shared_ptr<Memory> memory = nullptr, std::shared_ptr<const Prefixes> prefixes = nullptr);

  // See streamfuse_core.h; all throw Failure.
  void prepare();
  void start(const int64_t* ids, int64_t n, const Generation& generation, Owned<sf_constraint> grammar);
  bool read();               // processes a part of the prompt in one pass; false: nothing is left
  bool next(sf_token& out);  // false: the text has ended
  void score(const int64_t* ids, int64_t n, int64_t from, const Scores& out);
  std::span<const sf_top_token> top() const { return top_; }
  void finish(const char* reason);
  void stop() { ++stops_; }
  void reset();
  void trim();
  void save(const std::string& path, const std::string& note);
  void restore(const std::string& path, const std::function<int(const std::string&)>& take);  // see sf_sequence_restore
  std::string statistics() const { return statistics_.json(model_->spec); }
  const char* finish_reason() const { return statistics_.finish_reason.c_str(); }
  const std::vector<int64_t>& tokens() const { return tokens_; }
  int64_t cached() const { return engine_.cached(); }
  const Spec& spec() const { return spec_; }

  // See streamfuse_low.h. Costs are in the order of the verify methods in the caller's spec.
  void set_costs(const double* first, const double* last, int32_t count, bool frozen);
  Observer& observer() { return observer_; }

 private:
  // A pass whose tokens are being delivered.
  struct Block {
    bool open = false;
    Step step;
    StepTime ms{};
    const sf_results* results = nullptr;
    Path path;
    int64_t delivered = 0;
    bool saw_stop = false;  // the pass produced the stop token that ends the text
  };
  // Runs a part of a text, or passes that measure. If it fails, the text ends, its constraint is released, and the
  // engine is told that no pass follows.
  template <typename Body>
  auto or_end(const Body& body);
  void check_prompt(const int64_t* ids, int64_t n) const;
  void check_width(int64_t width) const;
  double learn_costs();
  void load_prefix();
  bool prefill_pass();
  bool prefill(bool one_pass);
  void pass();
  bool deliver(sf_token& out);
  bool deliver_certain(sf_token& out);
  void emit(int64_t token, uint8_t source, sf_token& out);
  void end_block();
  void learn();
  const char* at_limit(const char* reason) const;
  void end(const char* reason);
  void count_reread();
  void remember();
  void discard();
  Constraint* constraint() { return constraint_ ? &*constraint_ : nullptr; }
  bool stopped() const { return stops_.load(std::memory_order_relaxed) != past_stops_; }

  std::shared_ptr<const Model> model_;
  std::shared_ptr<Memory> memory_;
  std::shared_ptr<const Prefixes> prefixes_;
  const Spec& spec_;
  Engine engine_;
  CostSource cost_source_;
  Costs costs_;
  Planner planner_;
  Acceptor acceptor_;
  Statistics statistics_;
  Stopwatch watch_;
  Observer observer_;
  std::atomic<uint32_t> stops_{0};  // how often `stop` was called
  uint32_t past_stops_ = 0;         // of these, the calls before the start of the text, which do not end it

  std::vector<int64_t> tokens_;
  bool running_ = false;
  Generation generation_;
  std::optional<Constraint> constraint_;  // its state is the end of `tokens_` between two passes
  int64_t room_ = 0;                      // tokens that may still be delivered; -1: the prompt is not processed yet
  const char* reason_ = nullptr;          // why the text ends; NULL: it does not end yet
  Block block_;
  std::span<const sf_top_token> top_;  // most probable tokens at the last one's position; points into `block_.path`
  std::vector<int64_t> certain_;       // tokens that end the text without a pass, the last one first
};

}  // namespace streamfuse
