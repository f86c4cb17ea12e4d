#include "signature.h"

#include <executorch/runtime/core/exec_aten/util/scalar_type_util.h>

#include "error.h"
#include "ops/gated_delta_rule.h"
#include "streamfuse_engine.h"

namespace streamfuse {
namespace {

using executorch::aten::ScalarType;
using executorch::runtime::MethodMeta;
using executorch::runtime::Result;
using executorch::runtime::TensorInfo;

constexpr size_t kPassInputs = 5;     // input_ids, position_ids, ancestors, cache_length, want_logits
constexpr size_t kStreamsInputs = 3;  // hidden, position_ids, cache_length; next_token if streams are conditioned on it

std::string text_of(const std::vector<int64_t>& shape) {
  std::string text = "[";
  for (const int64_t n : shape) text += (text.size() > 1 ? ", " : "") + std::to_string(n);
  return text + "]";
}

TensorFacts facts_of(const std::string& method, const std::string& what, const Result<TensorInfo>& info) {
  if (!info.ok()) bad_program(method, what + " is not a tensor");
  const auto order = info->dim_order();
  for (size_t i = 0; i < order.size(); ++i)
    if (order[i] != i) bad_program(method, what + " must have the default dimension order");
  return {info->scalar_type(), {info->sizes().begin(), info->sizes().end()}, info->nbytes(), info->is_memory_planned()};
}

void require(const std::string& method, const std::string& what, const TensorFacts& found, ScalarType dtype,
             const std::vector<int64_t>& shape) {
  if (found.dtype == dtype && found.shape == shape) return;
  bad_program(method, what + " must be " + executorch::runtime::toString(dtype) + " " + text_of(shape) + ", but is " +
                          executorch::runtime::toString(found.dtype) + " " + text_of(found.shape));
}

// Reads the outputs in order.
class Outputs {
 public:
  explicit Outputs(const Signature& signature) : signature_(signature) {}

  bool next_is(ScalarType dtype, size_t rank) const {
    return at_ < signature_.outputs.size() && signature_.outputs[at_].dtype == dtype &&
           signature_.outputs[at_].shape.size() == rank;
  }
  // Takes the next output, which must have this dtype; -1 in `shape` matches any size.
  size_t take(const char* what, ScalarType dtype, std::vector<int64_t> shape) {
    if (at_ == signature_.outputs.size()) bad_program(signature_.name, std::string("it has no output ") + what);
    const TensorFacts& found = signature_.outputs[at_];
    for (size_t i = 0; i < shape.size() && i < found.shape.size(); ++i)
      if (shape[i] < 0) shape[i] = found.shape[i];
    require(signature_.name, what, found, dtype, shape);
    return at_++;
  }
  int64_t length(size_t index, size_t dimension) const { return signature_.outputs[index].shape[dimension]; }
  void expect_end() const {
    if (at_ != signature_.outputs.size())
      bad_program(signature_.name,
                  "it has " + std::to_string(signature_.outputs.size()) + " outputs, not " + std::to_string(at_));
  }

 private:
  const Signature& signature_;
  size_t at_ = 0;
};

// The number of states, which are the last inputs of a method: float32 [2, size].
size_t states_in(const std::vector<TensorFacts>& inputs, size_t first_cache) {
  size_t first = inputs.size();
  const auto is_state = [](const TensorFacts& one) {
    return one.dtype == ScalarType::Float && one.shape.size() == 2 && one.shape[0] == 2;
  };
  while (first > first_cache && is_state(inputs[first - 1])) --first;
  return inputs.size() - first;
}

std::vector<TensorFacts> inputs_of(const std::string& name, const MethodMeta& meta) {
  std::vector<TensorFacts> inputs;
  for (size_t i = 0; i < meta.num_inputs(); ++i)
    inputs.push_back(facts_of(name, "input " + std::to_string(i), meta.input_tensor_meta(i)));
  return inputs;
}

// The number of positions in a layer's caches, which may be ring buffers. An int8 cache consists of blocks, and the
// block that is being filled must lie outside the window.
int64_t positions_of(const std::string& method, size_t layer, const MethodMeta& meta, const Shapes& shapes) {
  const std::string what = "key_cache_" + std::to_string(layer);
  const TensorFacts keys = facts_of(method, what, meta.input_tensor_meta(kPassInputs + 2 * layer));
  if (keys.shape.size() != 3) bad_program(method, what + " must have three dimensions");
  const bool int8 = shapes.int8_cache();
  const int64_t found = keys.shape[int8 ? 1 : 0], least = shapes.window + (int8 ? kCacheBlock : 0);
  const bool fits = found == shapes.capacity || (found < shapes.capacity && found >= least);
  if (!fits || (int8 && found % kCacheBlock != 0))
    bad_program(method, what + " has " + std::to_string(found) + " positions, but a cache has those of the context (" +
                            std::to_string(shapes.capacity) + "), or at least " + std::to_string(least) +
                            " for the window of " + std::to_string(shapes.window) +
                            (int8 ? ", in blocks of " + std::to_string(kCacheBlock) : ""));
  return found;
}

// From the value cache, int8 [kv heads, positions, bytes of a position]: 17 bytes per tile of 16 dimensions, and a
// scale of 4 bytes.
int64_t int8_head_dim(const std::string& method, size_t layer, const MethodMeta& meta) {
  const std::string what = "value_cache_" + std::to_string(layer);
  const TensorFacts values = facts_of(method, what, meta.input_tensor_meta(kPassInputs + 2 * layer + 1));
  if (values.shape.size() != 3) bad_program(method, what + " must have three dimensions");
  return (values.shape[2] - 4) / (kQ8TileBytes / kCacheBlock) * kTileRows;
}

void agree(const std::string& method, const char* what, int64_t& known, int64_t found) {
  if (found < 1) bad_program(method, std::string(what) + " is " + std::to_string(found));
  if (known != 0 && known != found)
    bad_program(method,
                std::string(what) + " is " + std::to_string(found) + ", in other methods " + std::to_string(known));
  known = found;
}

void take_streams(Signature& s, Outputs& outputs, Shapes& shapes) {
  s.stream_ids = outputs.take("stream_ids", ScalarType::Long, {-1, -1, -1});
  const std::vector<int64_t> shape = s.outputs[*s.stream_ids].shape;
  s.stream_log_probs = outputs.take("stream_log_probs", ScalarType::Float, shape);
  s.carrying = shape[0];
  if (s.carrying > s.keep) bad_program(s.name, "it has streams for more nodes than it keeps");
  agree(s.name, "the number of streams", shapes.num_streams, shape[1]);
  agree(s.name, "top_k", shapes.top_k, shape[2]);
}

void take_hidden(Signature& s, Outputs& outputs, Shapes& shapes) {
  s.hidden = outputs.take("hidden", ScalarType::Float, {s.keep, -1});
  agree(s.name, "the hidden size", shapes.hidden_size, outputs.length(*s.hidden, 1));
}

void check_inputs(Signature& s, const std::vector<std::pair<const char*, TensorFacts>>& wanted, const Shapes& shapes) {
  for (size_t i = 0; i < wanted.size(); ++i)
    require(s.name, wanted[i].first, s.inputs[i], wanted[i].second.dtype, wanted[i].second.shape);
  for (size_t i = s.first_state; i < s.inputs.size(); ++i)
    require(s.name, "state input " + std::to_string(i), s.inputs[i], ScalarType::Float, {2, shapes.state_size});
  for (size_t i = s.first_cache; i < s.first_state; ++i) {
    const std::string what = "cache input " + std::to_string(i);
    const size_t cache = s.skipped_caches + i - s.first_cache;
    const KvShape kv = shapes.kv(cache);
    if (shapes.int8_cache())
      require(s.name, what, s.inputs[i], ScalarType::Byte,
              {kv.kv_heads, kv.capacity, cache % 2 == 0 ? kv.key_bytes() : kv.value_bytes()});
    else
      require(s.name, what, s.inputs[i], shapes.cache_dtype, {kv.capacity, kv.kv_heads, kv.head_dim});
  }
}

void read_pass(Signature& s, Shapes& shapes) {
  s.rows = s.keep = s.inputs[0].shape.size() == 1 ? s.inputs[0].shape[0] : 0;
  const auto facts = [](ScalarType dtype, std::vector<int64_t> shape) { return TensorFacts{dtype, shape, 0, false}; };
  if (s.rows < 1) bad_program(s.name, "input_ids must be [rows], with at least one row");
  check_inputs(s,
               {{"input_ids", facts(ScalarType::Long, {s.rows})},
                {"position_ids", facts(ScalarType::Long, {s.rows})},
                {"ancestors", facts(ScalarType::Bool, {s.rows, s.rows})},
                {"cache_length", facts(ScalarType::Long, {1})},
                {"want_logits", facts(ScalarType::Bool, {1})}},
               shapes);
  Outputs outputs(s);
  if (outputs.next_is(ScalarType::Float, 2)) {
    s.logits = outputs.take("logits", ScalarType::Float, {-1, -1});
    s.keep = outputs.length(*s.logits, 0);
    agree(s.name, "the vocabulary", shapes.vocab_size, outputs.length(*s.logits, 1));
    s.best = outputs.take("best", ScalarType::Long, {s.keep});
  }
  if (outputs.next_is(ScalarType::Long, 1)) s.kept = outputs.take("kept", ScalarType::Long, {s.keep});
  if (s.keep < 1 || s.keep > s.rows || (!s.kept && s.keep != s.rows))
    bad_program(s.name,
                "it keeps " + std::to_string(s.keep) + " of " + std::to_string(s.rows) + " rows without naming them");
  if (outputs.next_is(ScalarType::Long, 3)) take_streams(s, outputs, shapes);
  for (int64_t i = 0; i < 2 * shapes.layers; ++i) {
    const std::string what = (i % 2 == 0 ? "new_key_" : "new_value_") + std::to_string(i / 2);
    const KvShape kv = shapes.kv(static_cast<size_t>(i));
    const size_t at = outputs.take(what.c_str(), shapes.row_dtype(), {-1, kv.kv_heads, kv.head_dim});
    if (i == 0) s.new_rows = at;
    const int64_t n = outputs.length(at, 0);
    if (n != s.rows && n != s.keep) bad_program(s.name, what + " has " + std::to_string(n) + " rows");
  }
  if (outputs.next_is(ScalarType::Float, 2)) take_hidden(s, outputs, shapes);
  outputs.expect_end();
}

void read_streams(Signature& s, Shapes& shapes) {
  s.rows = s.keep = 1;
  const int64_t hidden = s.inputs[0].shape.size() == 2 ? s.inputs[0].shape[1] : 0;
  std::vector<std::pair<const char*, TensorFacts>> wanted = {{"hidden", {ScalarType::Float, {1, hidden}, 0, false}},
                                                             {"position_ids", {ScalarType::Long, {1}, 0, false}},
                                                             {"cache_length", {ScalarType::Long, {1}, 0, false}}};
  if (s.takes_next_token) wanted.push_back({"next_token", {ScalarType::Long, {1}, 0, false}});
  check_inputs(s, wanted, shapes);
  agree(s.name, "the hidden size", shapes.hidden_size, s.inputs[0].shape[1]);
  Outputs outputs(s);
  take_streams(s, outputs, shapes);
  outputs.expect_end();
}

}  // namespace

void bad_program(const std::string& method, const std::string& why) {
  throw Failure(SF_BAD_PROGRAM, "method " + method + " does not match docs/contracts.md: " + why);
}

void read_cache_shapes(const std::string& name, const MethodMeta& meta, Shapes& shapes) {
  const std::vector<TensorFacts> all = inputs_of(name, meta);
  const size_t states = states_in(all, kPassInputs), inputs = all.size() - states;
  if (inputs < kPassInputs + 2 || (inputs - kPassInputs) % 2 != 0)
    bad_program(name, "it takes " + std::to_string(inputs) + " inputs besides " + std::to_string(states) +
                          " states, not " + std::to_string(kPassInputs) + " + 2 per layer");
  const TensorFacts keys = facts_of(name, "key_cache_0", meta.input_tensor_meta(kPassInputs)),
                    values = facts_of(name, "value_cache_0", meta.input_tensor_meta(kPassInputs + 1));
  if (keys.shape.size() != 3 || values.shape.size() != 3)
    bad_program(name, "key_cache_0 and value_cache_0 must have three dimensions");
  agree(name, "the number of layers", shapes.layers, static_cast<int64_t>(inputs - kPassInputs) / 2);
  shapes.cache_dtype = keys.dtype;
  if (keys.dtype != ScalarType::Byte && keys.dtype != ScalarType::Half) shapes.cache_dtype = ScalarType::Float;
  const bool int8 = shapes.int8_cache();
  if (shapes.window == 0) agree(name, "the capacity", shapes.capacity, keys.shape[int8 ? 1 : 0]);
  if (int8 && shapes.capacity % kCacheBlock != 0)
    bad_program(name, "the capacity is " + std::to_string(shapes.capacity) + ", not a multiple of " +
                          std::to_string(kCacheBlock));
  if (states > 0) {
    agree(name, "the number of states", shapes.num_states, static_cast<int64_t>(states));
    agree(name, "the size of a state", shapes.state_size, all.back().shape[1]);
    if (shapes.state_size <= kStateHeader) bad_program(name, "its states are too small");
  }
  shapes.positions.resize(static_cast<size_t>(shapes.layers), 0);
  shapes.kv_heads.resize(static_cast<size_t>(shapes.layers), 0);
  shapes.head_dims.resize(static_cast<size_t>(shapes.layers), 0);
  for (size_t layer = 0; layer < shapes.positions.size(); ++layer) {
    int64_t found = shapes.capacity;
    if (shapes.window > 0) found = positions_of(name, layer, meta, shapes);
    agree(name, "the number of positions in a layer's caches", shapes.positions[layer], found);
    const std::string what = "key_cache_" + std::to_string(layer);
    const TensorFacts cache = facts_of(name, what, meta.input_tensor_meta(kPassInputs + 2 * layer));
    if (cache.shape.size() != 3) bad_program(name, what + " must have three dimensions");
    agree(name, "the number of kv heads of a layer", shapes.kv_heads[layer], cache.shape[int8 ? 0 : 1]);
    agree(name, "the head dimension of a layer", shapes.head_dims[layer],
          int8 ? int8_head_dim(name, layer, meta) : cache.shape[2]);
  }
}

Signature read_signature(const std::string& name, const MethodMeta& meta, Shapes& shapes) {
  Signature s;
  s.name = name;
  s.inputs = inputs_of(name, meta);
  for (size_t i = 0; i < meta.num_outputs(); ++i)
    s.outputs.push_back(facts_of(name, "output " + std::to_string(i), meta.output_tensor_meta(i)));
  s.first_cache = s.is_streams() ? kStreamsInputs : kPassInputs;
  if (s.is_streams() && s.inputs.size() > kStreamsInputs)
    s.takes_next_token = s.inputs[kStreamsInputs].shape.size() == 1;
  s.first_cache += s.takes_next_token;
  const size_t all = static_cast<size_t>(2 * shapes.layers), states = static_cast<size_t>(shapes.num_states),
               taken = s.inputs.size() < s.first_cache ? 0 : states_in(s.inputs, s.first_cache);
  s.first_state = s.inputs.size() - taken;
  if (s.first_state < s.first_cache || s.first_state - s.first_cache > all ||
      (s.first_state - s.first_cache) % 2 != 0 || taken > states || (taken < states && !s.is_streams()))
    bad_program(name, "it takes " + std::to_string(s.inputs.size()) + " inputs, of which " + std::to_string(taken) +
                          " are states; the program has " + std::to_string(states));
  s.skipped_caches = all - (s.first_state - s.first_cache);
  s.skipped_states = states - taken;
  if (s.is_streams())
    read_streams(s, shapes);
  else
    read_pass(s, shapes);
  return s;
}

}  // namespace streamfuse
