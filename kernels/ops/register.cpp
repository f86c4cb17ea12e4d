// The boxed `.out` variants. Every argument is checked here, so a malformed program ends in an error code of
// Method::execute and never in an abort or a read out of bounds.
#include "register.h"

#include <cinttypes>
#include <mutex>

#include <executorch/runtime/core/evalue.h>
#include <executorch/runtime/core/exec_aten/exec_aten.h>
#include <executorch/runtime/kernel/kernel_runtime_context.h>
#include <executorch/runtime/kernel/operator_registry.h>
#include <executorch/runtime/platform/log.h>

#include "top_k_log_prob.h"
#include "tree_attention.h"

namespace streamfuse {
namespace {

using executorch::aten::ScalarType;
using executorch::aten::Tensor;
using executorch::runtime::Error;
using executorch::runtime::EValue;
using executorch::runtime::KernelKey;
using executorch::runtime::KernelRuntimeContext;
using executorch::runtime::Span;

constexpr const char* kTreeAttention = "streamfuse::tree_attention.out";
constexpr const char* kTopKLogProb = "streamfuse::top_k_log_prob.out";

bool is_dense(const Tensor& t) {
  const auto order = t.dim_order();
  for (size_t i = 0; i < order.size(); ++i)
    if (order[i] != i) return false;
  return true;
}

bool has(const EValue& value, ScalarType dtype, std::initializer_list<int64_t> shape) {
  if (!value.isTensor()) return false;
  const Tensor& t = value.toTensor();
  if (t.scalar_type() != dtype || static_cast<size_t>(t.dim()) != shape.size() || !is_dense(t)) return false;
  size_t i = 0;
  for (int64_t n : shape)
    if (t.size(i++) != n) return false;
  return t.numel() == 0 || t.const_data_ptr() != nullptr;
}

bool is_rank(const EValue& value, int rank) { return value.isTensor() && value.toTensor().dim() == rank; }

void refuse(KernelRuntimeContext& context, const char* op, const char* why) {
  ET_LOG(Error, "%s: %s", op, why);
  context.fail(Error::InvalidArgument);
}

// query, key, value, key_cache, value_cache, cache_length, visible, scale, out, (returned) out
void tree_attention_out(KernelRuntimeContext& context, Span<EValue*> stack) {
  if (stack.size() < 9) return refuse(context, kTreeAttention, "takes 9 arguments");
  const EValue &query = *stack[0], &key = *stack[1], &value = *stack[2], &key_cache = *stack[3], &value_cache = *stack[4],
               &cache_length = *stack[5], &visible = *stack[6], &scale = *stack[7];
  EValue& out = *stack[8];
  if (!is_rank(query, 3) || !is_rank(key, 3) || !is_rank(key_cache, 3))
    return refuse(context, kTreeAttention, "query, key and key_cache must have three dimensions");
  const int64_t rows = query.toTensor().size(0), heads = query.toTensor().size(1), dim = query.toTensor().size(2);
  const int64_t kv_heads = key.toTensor().size(1), capacity = key_cache.toTensor().size(0);
  if (kv_heads < 1 || heads % kv_heads != 0) return refuse(context, kTreeAttention, "query heads must be a multiple of kv heads");
  if (!has(query, ScalarType::Float, {rows, heads, dim}) || !has(key, ScalarType::Float, {rows, kv_heads, dim}) ||
      !has(value, ScalarType::Float, {rows, kv_heads, dim}))
    return refuse(context, kTreeAttention, "query, key and value must be dense float32 [rows, heads, head_dim]");
  if (!has(key_cache, ScalarType::Float, {capacity, kv_heads, dim}) ||
      !has(value_cache, ScalarType::Float, {capacity, kv_heads, dim}))
    return refuse(context, kTreeAttention, "the caches must be dense float32 [capacity, kv_heads, head_dim]");
  if (!has(cache_length, ScalarType::Long, {1})) return refuse(context, kTreeAttention, "cache_length must be int64 [1]");
  if (!has(visible, ScalarType::Bool, {rows, rows})) return refuse(context, kTreeAttention, "visible must be bool [rows, rows]");
  if (!has(out, ScalarType::Float, {rows, heads * dim}))
    return refuse(context, kTreeAttention, "out must be dense float32 [rows, query_heads * head_dim]");
  if (!scale.isDouble()) return refuse(context, kTreeAttention, "scale must be a float");
  const int64_t length = cache_length.toTensor().const_data_ptr<int64_t>()[0];
  if (length < 0 || length > capacity) return refuse(context, kTreeAttention, "cache_length lies outside the cache");

  TreeAttention args;
  args.query = query.toTensor().const_data_ptr<float>();
  args.key = key.toTensor().const_data_ptr<float>();
  args.value = value.toTensor().const_data_ptr<float>();
  args.key_cache = key_cache.toTensor().const_data_ptr<float>();
  args.value_cache = value_cache.toTensor().const_data_ptr<float>();
  args.visible = visible.toTensor().const_data_ptr<bool>();
  args.out = out.toTensor().mutable_data_ptr<float>();
  args.cache_length = length;
  args.rows = rows;
  args.query_heads = heads;
  args.kv_heads = kv_heads;
  args.head_dim = dim;
  args.scale = static_cast<float>(scale.toDouble());
  tree_attention(args);
}

// logits, ids, k, out_ids, out_log_probs, (returned) the two
void top_k_log_prob_out(KernelRuntimeContext& context, Span<EValue*> stack) {
  if (stack.size() < 5) return refuse(context, kTopKLogProb, "takes 5 arguments");
  const EValue &logits = *stack[0], &ids = *stack[1], &k_value = *stack[2];
  EValue &out_ids = *stack[3], &out_log_probs = *stack[4];
  if (!is_rank(logits, 2) || !k_value.isInt()) return refuse(context, kTopKLogProb, "takes logits of two dimensions and an int k");
  const int64_t rows = logits.toTensor().size(0), columns = logits.toTensor().size(1), k = k_value.toInt();
  if (k < 1 || k > columns) return refuse(context, kTopKLogProb, "k must lie between 1 and the number of columns");
  if (!has(logits, ScalarType::Float, {rows, columns}) || !has(ids, ScalarType::Long, {columns}))
    return refuse(context, kTopKLogProb, "logits must be dense float32 [rows, columns] and ids int64 [columns]");
  if (!has(out_ids, ScalarType::Long, {rows, k}) || !has(out_log_probs, ScalarType::Float, {rows, k}))
    return refuse(context, kTopKLogProb, "the outputs must be int64 and float32 [rows, k]");

  TopKLogProb args;
  args.logits = logits.toTensor().const_data_ptr<float>();
  args.ids = ids.toTensor().const_data_ptr<int64_t>();
  args.out_ids = out_ids.toTensor().mutable_data_ptr<int64_t>();
  args.out_log_probs = out_log_probs.toTensor().mutable_data_ptr<float>();
  args.rows = rows;
  args.columns = columns;
  args.k = k;
  top_k_log_prob(args);
}

}  // namespace

void register_operators() {
  static std::once_flag once;
  std::call_once(once, [] {
    using executorch::runtime::Kernel;
    const Kernel kernels[] = {Kernel(kTreeAttention, KernelKey{}, tree_attention_out),
                              Kernel(kTopKLogProb, KernelKey{}, top_k_log_prob_out)};
    for (const Kernel& kernel : kernels) {
      if (executorch::runtime::registry_has_op_function(kernel.name_)) continue;
      const Error error = executorch::runtime::register_kernel(kernel);
      if (error != Error::Ok) ET_LOG(Error, "cannot register %s", kernel.name_);
    }
  });
}

}  // namespace streamfuse
