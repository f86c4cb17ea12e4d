// The boxed `.out` variants: arguments in the order of export/operators/aot.py, then the outputs, then the return
// values.
#include "rounding.h"

#include "register.h"

#include <iterator>
#include <mutex>
#include <new>
#include <utility>

#include <executorch/runtime/core/event_tracer_hooks.h>
#include <executorch/runtime/kernel/operator_registry.h>
#include <executorch/runtime/platform/log.h>

#include "add_normed.h"
#include "arguments.h"
#include "embedding.h"
#include "gate_heads.h"
#include "gated_delta_rule.h"
#include "gated_mlp.h"
#include "head.h"
#include "linear.h"
#include "qkv.h"
#include "real_rows.h"
#include "short_convolution.h"
#include "tree_attention.h"

namespace streamfuse {
namespace {

using executorch::runtime::Error;
using executorch::runtime::EValue;
using executorch::runtime::KernelKey;
using executorch::runtime::KernelRuntimeContext;
using executorch::runtime::Span;

struct Operator {
  const char* name;
  size_t arguments;  // including the outputs
  void (*run)(const Arguments&);
};

template <bool kWindowed>
void run_tree_attention(const Arguments& a) {
  const int64_t rows = a.size(0, "query", 3, 0), heads = a.size(0, "query", 3, 1), dim = a.size(0, "query", 3, 2);
  const int64_t kv_heads = a.size(1, "key", 3, 1), capacity = a.size(3, "key_cache", 3, 1);
  if (kv_heads < 1 || heads % kv_heads != 0) throw BadArgument{"query heads must be a multiple of kv heads"};
  if (capacity % kCacheBlock != 0) throw BadArgument{"the cache must have a multiple of 32 positions"};
  TreeAttention args;
  args.cache = {capacity, kv_heads, dim};
  args.query = a.read<float>(0, "query", {rows, heads, dim});
  args.key = a.read<float>(1, "key", {rows, kv_heads, dim});
  args.value = a.read<float>(2, "value", {rows, kv_heads, dim});
  args.key_cache = a.read<uint8_t>(3, "key_cache", {kv_heads, capacity, args.cache.key_bytes()});
  args.value_cache = a.read<uint8_t>(4, "value_cache", {kv_heads, capacity, args.cache.value_bytes()});
  args.cache_length = a.read<int64_t>(5, "cache_length", {1})[0];
  args.visible = a.read<bool>(6, "visible", {rows, rows});
  args.scale = a.number(7, "scale");
  args.window = kWindowed ? a.integer(8, "window", 1) : 0;
  args.out = a.write<float>(8 + kWindowed, "out", {rows, heads * dim});
  args.rows = RealRows::of(rows);
  args.visible_stride = rows;
  args.query_heads = heads;
  if (args.cache_length < 0 || (args.cache_length > capacity && !args.can_be_ring()))
    throw BadArgument{"cache_length is out of range"};
  tree_attention(args);
}

void run_short_convolution(const Arguments& a) {
  const int64_t rows = a.size(0, "query", 3, 0), heads = a.size(0, "query", 3, 1), dim = a.size(0, "query", 3, 2);
  const int64_t capacity = a.size(3, "key_cache", 3, 1), count = a.size(7, "taps", 2, 0);
  if (heads < 2 || heads % 2 != 0 || dim < 1)
    throw BadArgument{"query must have an even number of heads, not of size 0"};
  if (capacity % kCacheBlock != 0) throw BadArgument{"the cache must have a multiple of 32 positions"};
  if (count < 1) throw BadArgument{"taps must have at least one row"};
  ShortConvolution args;
  args.cache = {capacity, heads / 2, dim};
  args.query = a.read<float>(0, "query", {rows, heads, dim});
  args.key = a.read<float>(1, "key", {rows, heads / 2, dim});
  args.value = a.read<float>(2, "value", {rows, heads / 2, dim});
  args.key_cache = a.read<uint8_t>(3, "key_cache", {heads / 2, capacity, args.cache.key_bytes()});
  args.value_cache = a.read<uint8_t>(4, "value_cache", {heads / 2, capacity, args.cache.value_bytes()});
  args.cache_length = a.read<int64_t>(5, "cache_length", {1})[0];
  args.visible = a.read<bool>(6, "visible", {rows, rows});
  args.taps = a.read<float>(7, "taps", {count, heads * dim});
  args.out = a.write<float>(8, "out", {rows, heads * dim});
  args.count = count;
  args.rows = RealRows::of(rows);
  args.visible_stride = rows;
  if (args.cache_length < 0 || (args.cache_length > capacity && !args.can_be_ring()))
    throw BadArgument{"cache_length is out of range"};
  short_convolution(args);
}

template <bool kQ8>
void run_embedding(const Arguments& a) {
  const int64_t tiles = a.size(0, "weight", 3, 0), groups = a.size(0, "weight", 3, 1), rows = a.size(1, "ids", 1, 0);
  const int64_t bytes = kQ8 ? kQ8TileBytes : kQ4TileBytes;
  const Packed weight = {a.read<uint8_t>(0, "weight", {tiles, groups, bytes}), tiles, groups, kQ8};
  const int64_t* ids = a.read<int64_t>(1, "ids", {rows});
  for (int64_t row = 0; row < rows; ++row)
    if (ids[row] < 0 || ids[row] >= tiles * kTileRows) throw BadArgument{"an id is outside the embedding"};
  float* const out = a.write<float>(2, "out", {rows, groups * kGroupSize});
  embedding(weight, ids, RealRows::of(rows), out);
  RealRows::clear_others(out, rows, groups * kGroupSize);
}

template <bool kBiased>
void run_linear(const Arguments& a) {
  Linear args;
  args.input = a.normed_input();
  const int64_t rows = args.input.rows, inputs = args.input.inputs;
  args.outputs = a.integer(4, "out_features", 1);
  args.weight = a.weight(3, "weight", args.outputs, inputs);
  args.residual = a.optional(5, "residual", {rows, args.outputs});
  args.input.adapter = a.adapter(6, 8, 1, args.outputs, inputs);
  args.bias = kBiased ? a.read<float>(9, "bias", {args.outputs}) : nullptr;
  args.out = a.write<float>(9 + kBiased, "out", {rows, args.outputs});
  args.input.rows = RealRows::of(rows);
  linear(args);
  RealRows::clear_others(args.out, rows, args.outputs);
}

template <bool kBiased>
void run_qkv(const Arguments& a) {
  Qkv args;
  args.input = a.normed_input();
  const int64_t rows = args.input.rows, inputs = args.input.inputs, dim = a.size(4, "cos", 2, 1);
  args.head_dim = dim;
  if (dim < kTileRows || dim % kTileRows != 0) throw BadArgument{"the head dimension must be a multiple of 16"};
  args.heads = a.integer(6, "heads", 1);
  args.kv_heads = a.integer(7, "kv_heads", 1);
  const int64_t outputs = (args.heads + 2 * args.kv_heads) * dim;
  args.weight = a.weight(3, "weight", outputs, inputs);
  args.cos = a.read<float>(4, "cos", {rows, dim});
  args.sin = a.read<float>(5, "sin", {rows, dim});
  args.norms_rows = !a.absent(8) && a.size(8, "q_norm", 1, 0) != dim;
  args.q_norm = a.optional(8, "q_norm", {args.norms_rows ? args.heads * dim : dim});
  args.k_norm = a.optional(9, "k_norm", {args.norms_rows ? args.kv_heads * dim : dim});
  if (args.norms_rows && args.k_norm == nullptr) throw BadArgument{"norms over all heads need q_norm and k_norm"};
  args.input.adapter = a.adapter(10, 12, 3, outputs, inputs);
  args.bias = kBiased ? a.read<float>(13, "bias", {outputs}) : nullptr;
  args.query = a.write<float>(13 + kBiased, "out_query", {rows, args.heads, dim});
  args.key = a.write<float>(14 + kBiased, "out_key", {rows, args.kv_heads, dim});
  args.value = a.write<float>(15 + kBiased, "out_value", {rows, args.kv_heads, dim});
  args.input.rows = RealRows::of(args.input.rows);
  qkv(args);
}

void run_query(const Arguments& a) {
  Qkv args;
  args.input = a.normed_input();
  const int64_t rows = args.input.rows, inputs = args.input.inputs, dim = a.size(4, "cos", 2, 1);
  if (dim < kTileRows || dim % kTileRows != 0) throw BadArgument{"the head dimension must be a multiple of 16"};
  args.head_dim = dim;
  args.heads = a.integer(6, "heads", 1);
  args.kv_heads = 0;
  args.weight = a.weight(3, "weight", args.heads * dim, inputs);
  args.cos = a.read<float>(4, "cos", {rows, dim});
  args.sin = a.read<float>(5, "sin", {rows, dim});
  args.q_norm = a.optional(7, "q_norm", {dim});
  args.k_norm = args.bias = nullptr;
  args.input.adapter = a.adapter(8, 10, 1, args.heads * dim, inputs);
  args.query = a.write<float>(11, "out", {rows, args.heads, dim});
  args.key = args.value = nullptr;
  args.input.rows = RealRows::of(rows);
  qkv(args);
}

// gated_branch has an activation, and does not add x.
template <bool kBranch>
void run_gated_mlp(const Arguments& a) {
  GatedMlp args;
  args.input = a.normed_input();
  const int64_t rows = args.input.rows, hidden = args.input.inputs;
  const int64_t intermediate = args.intermediate = a.integer(5, "intermediate", kGroupSize);
  if (intermediate % kGroupSize != 0) throw BadArgument{"intermediate must be a multiple of 32"};
  args.gate_up = a.weight(3, "gate_up", 2 * intermediate, hidden);
  args.down_proj = a.weight(4, "down_proj", hidden, intermediate);
  args.input.adapter = a.adapter(6, 10, 2, 2 * intermediate, hidden);
  args.down_adapter = a.adapter(8, 10, 1, hidden, intermediate);
  if (kBranch) args.activation = a.flag(11, "gelu") ? Activation::kGelu : Activation::kSilu;
  args.adds_input = !kBranch;
  args.out = a.write<float>(11 + kBranch, "out", {rows, hidden});
  args.input.rows = RealRows::of(rows);
  gated_mlp(args);
  RealRows::clear_others(args.out, rows, hidden);
}

void run_add_normed(const Arguments& a) {
  const ProductInput input = a.normed_input();
  if (input.norm == nullptr) throw BadArgument{"norm is missing"};
  AddNormed args = {input.x, input.norm, input.eps, nullptr, RealRows::of(input.rows), input.inputs, nullptr};
  args.residual = a.read<float>(3, "residual", {input.rows, input.inputs});
  args.out = a.write<float>(4, "out", {input.rows, input.inputs});
  add_normed(args);
  RealRows::clear_others(args.out, input.rows, input.inputs);
}

template <void (*kGate)(const GateHeads&)>
void run_gate(const Arguments& a) {
  const int64_t rows = a.size(0, "x", 2, 0), size = a.size(0, "x", 2, 1), heads = a.size(1, "gates", 2, 1);
  if (heads < 1 || size % heads != 0) throw BadArgument{"the columns of x must be a multiple of those of gates"};
  if (kGate != gate_heads && size != heads) throw BadArgument{"gates must have the shape of x"};
  GateHeads args;
  args.x = a.read<float>(0, "x", {rows, size});
  args.gates = a.read<float>(1, "gates", {rows, heads});
  args.out = a.write<float>(2, "out", {rows, size});
  args.rows = RealRows::of(rows);
  args.heads = heads;
  args.head_dim = size / heads;
  kGate(args);
  RealRows::clear_others(args.out, rows, size);
}

void run_delta_rows(const Arguments& a) {
  const int64_t rows = a.size(0, "projected", 2, 0), value_heads = a.integer(1, "value_heads", 1),
                channels = a.size(0, "projected", 2, 1) - 2 * value_heads;
  const KvShape cache = {0, a.integer(2, "kv_heads", 1), a.integer(3, "head_dim", 1)};
  if (channels < 1 || 2 * kGateStride * value_heads + channels > 2 * cache.kv_heads * cache.head_dim)
    throw BadArgument{"projected does not fit the heads of the cache"};
  const float* const projected = a.read<float>(0, "projected", {rows, 2 * value_heads + channels});
  float* const key = a.write<float>(4, "out_key", {rows, cache.kv_heads, cache.head_dim});
  float* const value = a.write<float>(5, "out_value", {rows, cache.kv_heads, cache.head_dim});
  delta_rows(projected, RealRows::of(rows), value_heads, channels, cache, key, value);
}

void run_gated_delta_rule(const Arguments& a) {
  const int64_t rows = a.size(0, "key", 3, 0), kv_heads = a.size(0, "key", 3, 1), dim = a.size(0, "key", 3, 2);
  const int64_t capacity = a.size(2, "key_cache", 3, 1);
  if (capacity % kCacheBlock != 0) throw BadArgument{"the cache must have a multiple of 32 positions"};
  GatedDeltaRule args;
  args.cache = {capacity, kv_heads, dim};
  args.key = a.read<float>(0, "key", {rows, kv_heads, dim});
  args.value = a.read<float>(1, "value", {rows, kv_heads, dim});
  args.key_cache = a.read<uint8_t>(2, "key_cache", {kv_heads, capacity, args.cache.key_bytes()});
  args.value_cache = a.read<uint8_t>(3, "value_cache", {kv_heads, capacity, args.cache.value_bytes()});
  args.cache_length = a.read<int64_t>(4, "cache_length", {1})[0];
  args.visible = a.read<bool>(5, "visible", {rows, rows});
  args.count = a.size(7, "taps", 2, 0);
  args.value_heads = a.size(8, "rates", 1, 0);
  args.value_dim = a.size(10, "norm", 1, 0);
  args.key_heads = a.integer(12, "key_heads", 1);
  const int64_t keys = a.size(7, "taps", 2, 1) - args.value_heads * args.value_dim;
  args.key_dim = keys / (2 * args.key_heads);
  if (args.value_heads < 1 || args.value_dim < 1 || keys < 2 || keys != 2 * args.key_heads * args.key_dim ||
      args.value_heads % args.key_heads != 0)
    throw BadArgument{"the channels of taps do not fit the heads"};
  if (rows < 1 || capacity < 1) throw BadArgument{"key and the caches must not be empty"};
  if (args.count < 2 || args.count > kMostTaps) throw BadArgument{"taps must have 2 to 16 rows"};
  if (args.first_channel() + args.channels() > args.row_size()) throw BadArgument{"key and value are too small"};
  args.states = const_cast<float*>(a.read<float>(6, "states", {2, kStateHeader + args.state_size()}));
  args.taps = a.read<float>(7, "taps", {args.count, args.channels()});
  args.rates = a.read<float>(8, "rates", {args.value_heads});
  args.dt_bias = a.read<float>(9, "dt_bias", {args.value_heads});
  args.norm = a.read<float>(10, "norm", {args.value_dim});
  args.eps = a.number(11, "eps");
  args.rewindable = a.integer(13, "rewindable", 1);
  args.out = a.write<float>(14, "out", {rows, args.value_heads * args.value_dim});
  args.rows = RealRows::of(rows);
  args.visible_stride = rows;
  if (args.cache_length < 0) throw BadArgument{"cache_length is out of range"};
  if (const char* why = why_not_updatable(args)) throw BadArgument{why};
  gated_delta_rule(args);
}

template <bool kCapped>
void run_head(const Arguments& a) {
  Head args;
  args.input = a.normed_input();
  args.vocab_size = a.integer(4, "vocab_size", 1);
  args.weight = a.weight(3, "weight", args.vocab_size, args.input.inputs);
  args.cap = kCapped ? a.number(6, "cap") : 0.0f;
  if (kCapped && !(args.cap > 0.0f)) throw BadArgument{"cap must be above 0"};
  float* const logits = a.write<float>(6 + kCapped, "out_logits", {args.input.rows, args.vocab_size});
  args.logits = a.read<bool>(5, "want_logits", {1})[0] ? logits : nullptr;
  args.best = a.write<int64_t>(7 + kCapped, "out_best", {args.input.rows});
  args.input.rows = RealRows::of(args.input.rows);
  head(args);
}

void run_stream_top_k(const Arguments& a) {
  StreamTopK args;
  args.input = a.normed_input();
  args.columns = a.size(4, "ids", 1, 0);
  args.weight = a.weight(3, "weight", args.columns, args.input.inputs);
  args.ids = a.read<int64_t>(4, "ids", {args.columns});
  args.k = a.integer(5, "k", 1);
  if (args.k > args.columns) throw BadArgument{"k must not be larger than the number of columns"};
  args.out_ids = a.write<int64_t>(6, "out_ids", {args.input.rows, args.k});
  args.out_log_probs = a.write<float>(7, "out_log_probs", {args.input.rows, args.k});
  stream_top_k(args);
}

constexpr Operator kOperators[] = {
    {"streamfuse::tree_attention.out", 9, run_tree_attention<false>},
    {"streamfuse::window_attention.out", 10, run_tree_attention<true>},
    {"streamfuse::short_convolution.out", 9, run_short_convolution},
    {"streamfuse::embedding_q8.out", 3, run_embedding<true>},
    {"streamfuse::embedding_q4.out", 3, run_embedding<false>},
    {"streamfuse::linear.out", 10, run_linear<false>},
    {"streamfuse::biased_linear.out", 11, run_linear<true>},
    {"streamfuse::qkv.out", 16, run_qkv<false>},
    {"streamfuse::biased_qkv.out", 17, run_qkv<true>},
    {"streamfuse::query.out", 12, run_query},
    {"streamfuse::gated_mlp.out", 12, run_gated_mlp<false>},
    {"streamfuse::gated_branch.out", 13, run_gated_mlp<true>},
    {"streamfuse::add_normed.out", 5, run_add_normed},
    {"streamfuse::gate_heads.out", 3, run_gate<gate_heads>},
    {"streamfuse::silu_gate.out", 3, run_gate<silu_gate>},
    {"streamfuse::gelu_gate.out", 3, run_gate<gelu_gate>},
    {"streamfuse::delta_rows.out", 6, run_delta_rows},
    {"streamfuse::gated_delta_rule.out", 15, run_gated_delta_rule},
    {"streamfuse::head.out", 8, run_head<false>},
    {"streamfuse::capped_head.out", 9, run_head<true>},
    {"streamfuse::stream_top_k.out", 8, run_stream_top_k},
};

template <size_t Index>
void boxed(KernelRuntimeContext& context, Span<EValue*> stack) {
  constexpr Operator op = kOperators[Index];
  // In a profile, the operator has its own name, as generated kernels do.
  const executorch::runtime::internal::EventTracerProfileOpScope scope(context.internal_event_tracer(), op.name);
  try {
    op.run(Arguments(stack, op.arguments));
  } catch (const BadArgument& refused) {
    ET_LOG(Error, "%s: %s", op.name, refused.why.c_str());
    context.fail(Error::InvalidArgument);
  } catch (const std::bad_alloc&) {
    ET_LOG(Error, "%s: out of memory", op.name);
    context.fail(Error::MemoryAllocationFailed);
  }
}

template <size_t... Index>
void register_all(std::index_sequence<Index...>) {
  using executorch::runtime::Kernel;
  const Kernel kernels[] = {Kernel(kOperators[Index].name, KernelKey{}, boxed<Index>)...};
  for (const Kernel& kernel : kernels) {
    if (executorch::runtime::registry_has_op_function(kernel.name_)) continue;
    const Error error = executorch::runtime::register_kernel(kernel);
    if (error != Error::Ok) ET_LOG(Error, "cannot register %s", kernel.name_);
  }
}

}  // namespace

void register_operators() {
  static std::once_flag once;
  std::call_once(once, [] { register_all(std::make_index_sequence<std::size(kOperators)>()); });
}

}  // namespace streamfuse
