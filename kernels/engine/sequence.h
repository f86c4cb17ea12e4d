// One sequence on a program: its caches, its own instances of the methods, and the results of the last pass.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#ifndef STREAMFUSE_NO_ETDUMP
#include <executorch/devtools/etdump/etdump_flatcc.h>
#endif

#include "method.h"
#include "streamfuse_engine.h"

namespace streamfuse {

#ifdef STREAMFUSE_NO_ETDUMP
using Tracer = executorch::runtime::EventTracer;  // there is never one
#else
using Tracer = executorch::etdump::ETDumpGen;
#endif

class Sequence {
 public:
  explicit Sequence(std::shared_ptr<const Program> program, const sf_watch* watch = nullptr);
  ~Sequence();
  Sequence(const Sequence&) = delete;
  Sequence& operator=(const Sequence&) = delete;

  const Program& program() const { return *program_; }
  int64_t length() const { return length_; }

  // See streamfuse_engine.h; all throw Failure.
  void run(const std::string& method, int n, const int64_t* ids, const int64_t* positions, const uint8_t* ancestors,
           bool want_logits);
  void streams(int index, int64_t next_token);
  sf_results results() const;
  void commit(const int32_t* rows, int n);
  void truncate(int64_t length);
  // The longest prefix of at most `length` positions that `truncate` accepts: `length`, or 0 if rings have lost
  // positions of its window.
  int64_t truncatable(int64_t length) const;
  // Returns to the system the memory of an empty cache, and that of activations, inputs and outputs.
  void trim();
  // The first `length` cache positions as bytes, rounded up to whole blocks if the cache has blocks: layer after layer,
  // keys, then values, in the layout of the caches. With rings, the oldest position that all of them still have comes
  // first, int64, and a ring is saved whole if it has fewer than `length` positions. Places without a position of the
  // text are saved as zero rows.
  uint64_t bytes_of(int64_t length) const;
  void save(int64_t length, const std::function<void(const void* data, uint64_t bytes)>& put);
  void load(int64_t length, const std::function<void(void* data, uint64_t bytes)>& get);
  void profile(bool on);
  const std::vector<uint8_t>& profile_data();

 private:
  using Methods = std::map<std::string, std::unique_ptr<GraphMethod>>;
  // All methods of the program, bound to this sequence's memory. `tracer` and `watch` may be null.
  Methods load_methods(Tracer* tracer, const sf_watch* watch) const;
  void free_methods();
  void read_survivors(const GraphMethod& method, int n);
  const uint8_t* new_rows(size_t cache, bool& by_place) const;
  void write_row(size_t cache, int64_t position, const uint8_t* row);
  void clear_unused(size_t cache, int64_t length);
  void rewind_states(float* states, int64_t length) const;
  int64_t oldest_state() const;
  template <typename Take>
  void for_each_part(size_t cache, int64_t length, const Take& take) const;

  std::shared_ptr<const Program> program_;
  Block arena_;          // activations, shared by all methods, of which one runs at a time
  Block streams_arena_;  // so that `streams` does not overwrite the outputs of the previous pass
  std::vector<Block> caches_;
  std::vector<Block> states_;       // of layers with linear attention, lowest first
  std::unique_ptr<Tracer> tracer_;  // while profiling
  Methods methods_;
  std::vector<uint8_t> profile_data_;
  int64_t length_ = 0;
  int64_t oldest_ = 0;  // the caches have all positions from this one on; rings may have lost those before it

  GraphMethod* ran_ = nullptr;       // the method of the last pass; null if there are no results
  GraphMethod* streamed_ = nullptr;  // the method whose streams are current
  int64_t ran_at_length_ = 0;
  bool can_commit_ = false;
  std::vector<int64_t> kept_;    // real kept rows; its memory does not move
  std::vector<int64_t> places_;  // indices in kept_ of the rows that are being committed
};

}  // namespace streamfuse
