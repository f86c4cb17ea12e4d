// Calls the caller's engine (sf_backend) and checks its results, so that no array is read out of bounds.
//
// Throws Failure with the engine's message.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "costs.h"
#include "draft.h"
#include "owned.h"
#include "tree.h"

namespace streamfuse {

class Engine {
 public:
  Engine(const Spec& spec, Backend backend);

  // Number of tokens in the cache.
  int64_t cached() const { return cached_; }

  // Processes and commits the next tokens of a prompt, at most `prefill_rows`.
  void prefill(std::span<const int64_t> tokens);
  // Runs a method on the first `nodes` rows of a tree, whose root follows the cached tokens.
  const sf_results& run(int64_t method, const Tree& tree, int64_t nodes, bool want_logits);
  // The same on a chain of `nodes` tokens 0, for timing; nothing is committed.
  void run_chain(int64_t method, int64_t nodes);
  // Streams of a survivor of the last run, which `token` follows; the tokens before it are committed.
  Streams streams(int64_t survivor, int64_t token);
  // Streams of a survivor from the results of a run; null if it has none.
  Streams streams_of(const sf_results& results, int64_t survivor) const;
  // Appends these rows of the last run to the cache.
  void commit(std::span<const int32_t> rows);
  void truncate(int64_t length);
  // Like `truncate`, for rows that the text does not need. They count as dropped even if the engine fails; the next
  // `truncate` or `rewind` then drops them.
  void drop(int64_t length);
  // Truncates to `length`, or, if the engine cannot go back to that, to the next smaller length to which it can.
  void rewind(int64_t length);
  void idle();
  void trim();  // the cache must be empty

  const char* name_of(int64_t method) const;

  // Bytes of the first `tokens` cache rows; 0 if the engine cannot save them.
  uint64_t saved_bytes(int64_t tokens) const;
  using Write = std::function<void(const void* data, uint64_t bytes)>;
  using Read = std::function<bool(void* data, uint64_t bytes)>;  // false: there are fewer
  void save(const Write& write) const;
  // The cache must be empty, and is empty again if this fails, though the engine may have read a part by then. False:
  // the file ended early.
  bool load(int64_t tokens, const Read& read);

 private:
  void call(const char* method, int64_t nodes, bool want_logits);
  void fill_chain(int64_t nodes, int64_t position);
  void check_results(int64_t method, int64_t nodes, bool want_logits) const;
  void check(int code) const;
  const char* last_error() const;

  const Spec& spec_;
  Backend backend_;
  int64_t cached_ = 0;
  sf_results results_{};
  std::vector<int64_t> ids_, positions_;
  std::vector<uint8_t> ancestors_;
  std::vector<int32_t> rows_;
};

}  // namespace streamfuse
