// The inputs and outputs of a program's method, read from its metadata and checked against docs/contracts.md,
// section 2.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <executorch/runtime/executor/method_meta.h>

#include "ops/kv_cache.h"

namespace streamfuse {

constexpr const char* kStreams = "streams";  // the method of the deferred schedule

// Dimensions that all methods share; 0 if no method defines them.
//
// In a program with the constants get_sliding_window and get_max_context_len, caches may be ring buffers: they have
// fewer positions than the context, and position t is stored at t modulo their number.
struct Shapes {
  int64_t layers = 0;  // that have caches
  int64_t capacity = 0, vocab_size = 0, num_streams = 0, top_k = 0, hidden_size = 0;
  int64_t window = 0;              // of the layers whose caches are rings; 0: there are none
  std::vector<int64_t> positions;  // in the caches of each layer, at most `capacity`
  std::vector<int64_t> kv_heads;   // in the caches of each layer; a convolution can have more than attention
  std::vector<int64_t> head_dims;  // of the caches of each layer
  int64_t num_states = 0;  // layers with linear attention; each has states, float32 [2, state_size]: gated_delta_rule.h
  int64_t state_size = 0;  // numbers of a state, including its header
  // Float or Half: [positions, kv heads, head dim]; Byte: int8, in the layout of kv_cache.h.
  executorch::aten::ScalarType cache_dtype = executorch::aten::ScalarType::Float;

  bool int8_cache() const { return cache_dtype == executorch::aten::ScalarType::Byte; }
  // The dtype of new keys and values; a float cache stores them unchanged.
  executorch::aten::ScalarType row_dtype() const {
    return int8_cache() ? executorch::aten::ScalarType::Float : cache_dtype;
  }
  // Bytes of one position's new keys or values.
  int64_t row_bytes(size_t cache) const {
    const bool half = row_dtype() == executorch::aten::ScalarType::Half;
    return kv_heads[cache / 2] * head_dims[cache / 2] * static_cast<int64_t>(half ? sizeof(uint16_t) : sizeof(float));
  }
  // Even caches have keys, odd ones values.
  KvShape kv(size_t cache) const { return {positions[cache / 2], kv_heads[cache / 2], head_dims[cache / 2]}; }
  // Bytes of one position in one cache.
  int64_t position_bytes(size_t cache) const {
    if (!int8_cache()) return row_bytes(cache);
    return kv_heads[cache / 2] * (cache % 2 == 0 ? kv(cache).key_bytes() : kv(cache).value_bytes());
  }
  int64_t cache_bytes(size_t cache) const { return positions[cache / 2] * position_bytes(cache); }
  // Positions of the smallest ring; `capacity` if there is none.
  int64_t ring() const { return positions.empty() ? capacity : *std::min_element(positions.begin(), positions.end()); }
  bool has_rings() const { return ring() < capacity; }
  int64_t state_bytes() const { return 2 * state_size * static_cast<int64_t>(sizeof(float)); }
};

struct TensorFacts {
  executorch::aten::ScalarType dtype;
  std::vector<int64_t> shape;
  size_t bytes;
  bool is_planned;  // its memory is part of the method's memory plan
};

struct Signature {
  std::string name;
  int64_t rows = 0, keep = 0;
  int64_t carrying = 0;           // how many of the kept nodes have streams
  size_t first_cache = 0;         // index of the first input that is a cache ...
  bool takes_next_token = false;  // `streams`: the token after its node is an input, before the caches
  size_t skipped_caches = 0;      // ... and the number of caches of lower layers that the method does not take
  size_t first_state = 0;         // index of the first input that is a state; states follow the caches
  size_t skipped_states = 0;      // states of lower layers that the method does not take
  std::vector<TensorFacts> inputs, outputs;
  // Indices of the outputs.
  std::optional<size_t> logits, best, kept, stream_ids, stream_log_probs, hidden;
  size_t new_rows = 0;  // index of new_key_0; `streams` has none

  bool is_streams() const { return name == kStreams; }
};

// Reads number of layers, capacity, and the positions, kv heads and head dimension of each layer from a method that
// takes all caches. With rings, `window` and `capacity` are known already.
void read_cache_shapes(const std::string& name, const executorch::runtime::MethodMeta& meta, Shapes& shapes);

// Throws Failure(SF_BAD_PROGRAM) that names the method and the mismatched input or output; completes `shapes`.
Signature read_signature(const std::string& name, const executorch::runtime::MethodMeta& meta, Shapes& shapes);

[[noreturn]] void bad_program(const std::string& method, const std::string& why);

}  // namespace streamfuse
