// Reports every pass to a test or benchmark (streamfuse_low.h).
#pragma once

#include <vector>

#include "accept.h"
#include "decide.h"
#include "streamfuse_low.h"

namespace streamfuse {

class Observer {
 public:
  void set(void (*observer)(void*, const sf_pass*), void* context) {
    observer_ = observer;
    context_ = context;
  }

  void see(const char* method, const Step& step, const Tree& tree, const sf_results& results, const Path& path,
           int64_t delivered, int64_t cached) {
    if (observer_ == nullptr) return;
    tokens_.clear();
    parents_.clear();
    log_probs_.clear();
    sources_.clear();
    for (int64_t row = 0; row < step.nodes; ++row) {
      tokens_.push_back(tree[row].token);
      parents_.push_back(tree[row].parent);
      log_probs_.push_back(tree[row].log_prob);
      sources_.push_back(tree[row].source);
    }
    const sf_tree drafted = {step.nodes, tokens_.data(), parents_.data(), log_probs_.data(), sources_.data()};
    const sf_pass pass = {method,
                          step.reason,
                          drafted,
                          &results,
                          path.rows.data(),
                          path.tokens.data(),
                          static_cast<int64_t>(path.tokens.size()),
                          delivered,
                          cached};
    observer_(context_, &pass);
  }

 private:
  void (*observer_)(void*, const sf_pass*) = nullptr;
  void* context_ = nullptr;
  std::vector<int64_t> tokens_, parents_;
  std::vector<double> log_probs_;
  std::vector<uint8_t> sources_;
};

}  // namespace streamfuse
