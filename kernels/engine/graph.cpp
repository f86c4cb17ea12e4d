#include "graph.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include <executorch/runtime/backend/backend_options_map.h>
#include <executorch/runtime/backend/interface.h>
#include <executorch/runtime/executor/method_meta.h>

#include "error.h"
#include "ops/lane_kernels.h"
#include "ops/register.h"
#include "streamfuse_engine.h"

namespace streamfuse {
namespace {

using executorch::aten::ScalarType;
using executorch::aten::TensorImpl;
using executorch::runtime::Error;
using executorch::runtime::EValue;
using executorch::runtime::MethodMeta;
using executorch::runtime::Program;
using executorch::runtime::Result;
using executorch::runtime::Span;
using executorch::runtime::Tag;
using executorch::runtime::TensorInfo;

constexpr const char* kXnnpack = "XnnpackBackend";
constexpr int64_t kSmallInputs = 4;  // input_ids, position_ids, ancestors, cache_length

[[noreturn]] void bad_program(const std::string& method, const std::string& why) {
  throw Failure(SF_BAD_PROGRAM, "method " + method + " is not of the shape of docs/contracts.md: " + why);
}

std::string shape_text(const std::vector<int64_t>& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) text += (i ? ", " : "") + std::to_string(shape[i]);
  return text + "]";
}

std::vector<int64_t> shape_of(const TensorInfo& info) { return {info.sizes().begin(), info.sizes().end()}; }

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    if (static_cast<unsigned char>(c) < 0x20) {
      char escaped[8];
      std::snprintf(escaped, sizeof escaped, "\\u%04x", c);
      out += escaped;
    } else {
      out += c;
    }
  }
  return out + "\"";
}

TensorInfo tensor_input(const std::string& method, const MethodMeta& meta, size_t index) {
  const Result<TensorInfo> info = meta.input_tensor_meta(index);
  if (!info.ok()) bad_program(method, "input " + std::to_string(index) + " is not a tensor");
  return info.get();
}

TensorInfo tensor_output(const std::string& method, const MethodMeta& meta, size_t index) {
  const Result<TensorInfo> info = meta.output_tensor_meta(index);
  if (!info.ok()) bad_program(method, "output " + std::to_string(index) + " is not a tensor");
  return info.get();
}

void require(const std::string& method, const std::string& what, const TensorInfo& info, ScalarType dtype,
             const std::vector<int64_t>& shape) {
  if (info.scalar_type() != dtype || shape_of(info) != shape)
    bad_program(method, what + " must be " + executorch::runtime::toString(dtype) + " " + shape_text(shape) + ", but is " +
                            executorch::runtime::toString(info.scalar_type()) + " " + shape_text(shape_of(info)));
  const auto order = info.dim_order();
  for (size_t i = 0; i < order.size(); ++i)
    if (order[i] != i) bad_program(method, what + " must have the default dimension order");
}

// One copy of packed weights for all methods, one workspace for all delegates of this program.
class XnnpackOptions {
 public:
  XnnpackOptions() {
    (void)options_.set_option("weight_cache_enabled", flag("STREAMFUSE_XNNPACK_WEIGHT_CACHE", 1) != 0);
    (void)options_.set_option("workspace_sharing_mode", flag("STREAMFUSE_XNNPACK_WORKSPACE", 1));  // 0 none, 1 model, 2 global
    (void)map_.set_options(kXnnpack, options_.view());
  }
  const executorch::runtime::LoadBackendOptionsMap* map() const { return &map_; }

 private:
  static int flag(const char* name, int otherwise) {
    const char* value = std::getenv(name);
    return value == nullptr || *value == 0 ? otherwise : std::atoi(value);
  }
  executorch::runtime::BackendOptions<4> options_;
  executorch::runtime::LoadBackendOptionsMap map_;
};

}  // namespace

Block::Block(size_t bytes) : bytes_(bytes) {
  memory_ = {std::calloc(bytes + 64, 1), std::free};
  if (memory_ == nullptr) throw Failure(SF_OUT_OF_MEMORY, "cannot allocate " + std::to_string(bytes) + " bytes");
  data_ = reinterpret_cast<void*>((reinterpret_cast<uintptr_t>(memory_.get()) + 63) & ~uintptr_t{63});
}

Graph::Graph(const std::string& path, int num_threads) : pool_(num_threads) {
  register_operators();
  PlatformScope scope;
  using executorch::extension::MmapDataLoader;
  Result<MmapDataLoader> loader = MmapDataLoader::from(path.c_str(), MmapDataLoader::MlockConfig::NoMlock);
  if (!loader.ok()) throw Failure(SF_BAD_PROGRAM, "cannot read " + path + ": " + scope.errors());
  loader_ = std::make_unique<MmapDataLoader>(std::move(loader.get()));
  Result<Program> program = Program::load(loader_.get(), Program::Verification::InternalConsistency);
  if (!program.ok()) throw Failure(SF_BAD_PROGRAM, path + " is not an ExecuTorch program, or is damaged: " + scope.errors());
  program_ = std::make_unique<Program>(std::move(program.get()));

  std::vector<std::string> names;
  for (size_t i = 0; i < program_->num_methods(); ++i) {
    const Result<const char*> name = program_->get_method_name(i);
    if (name.ok()) names.emplace_back(*name);
  }
  size_t arena_bytes = 0;
  for (const std::string& name : names) {
    const Result<MethodMeta> meta = program_->method_meta(name.c_str());
    if (!meta.ok()) throw Failure(SF_BAD_PROGRAM, path + ": method " + name + " cannot be read: " + scope.errors());
    if (meta->num_inputs() == 0) continue;
    read_shapes(name, *meta);
    if (meta->num_memory_planned_buffers() > 0)
      arena_bytes = std::max(arena_bytes, static_cast<size_t>(meta->memory_planned_buffer_size(0).get()));
  }
  if (shapes_.layers == 0) throw Failure(SF_BAD_PROGRAM, path + " has no method with key and value caches");
  arena_ = Block(arena_bytes);
  for (int64_t i = 0; i < 2 * shapes_.layers; ++i)
    caches_.emplace_back(static_cast<size_t>(shapes_.capacity * shapes_.cache_row()) * sizeof(float));

  for (const std::string& name : names) {
    if (program_->method_meta(name.c_str())->num_inputs() == 0) {
      load_constant(name);
      continue;
    }
    auto method = std::make_unique<GraphMethod>();
    load_method(name, *method);
    methods_.emplace(name, std::move(method));
  }
}

void Graph::read_shapes(const std::string& name, const MethodMeta& meta) {
  const int64_t inputs = static_cast<int64_t>(meta.num_inputs());
  if (inputs < kSmallInputs + 2 || (inputs - kSmallInputs) % 2 != 0)
    bad_program(name, "it takes " + std::to_string(inputs) + " inputs, not 4 + 2 per layer");
  const std::vector<int64_t> cache = shape_of(tensor_input(name, meta, kSmallInputs));
  if (cache.size() != 3) bad_program(name, "key_cache_0 must be [capacity, kv heads, head dim]");
  Shapes found = shapes_;
  found.layers = (inputs - kSmallInputs) / 2;
  found.capacity = cache[0], found.kv_heads = cache[1], found.head_dim = cache[2];
  if (shapes_.layers != 0 && (found.layers != shapes_.layers || found.capacity != shapes_.capacity ||
                              found.kv_heads != shapes_.kv_heads || found.head_dim != shapes_.head_dim))
    bad_program(name, "its caches differ from those of the other methods");
  shapes_ = found;
}

void Graph::prepare_memory(GraphMethod& target, const MethodMeta& meta) {
  for (size_t i = 0; i < meta.num_memory_planned_buffers(); ++i) {
    const size_t bytes = static_cast<size_t>(meta.memory_planned_buffer_size(i).get());
    if (i == 0) {
      target.spans_.emplace_back(arena_.as<uint8_t>(), bytes);
    } else {
      target.blocks_.emplace_back(bytes);
      target.spans_.emplace_back(target.blocks_.back().as<uint8_t>(), bytes);
    }
  }
  target.planned_ = std::make_unique<executorch::runtime::HierarchicalAllocator>(
      Span<Span<uint8_t>>(target.spans_.data(), target.spans_.size()));
  target.memory_ = std::make_unique<executorch::runtime::MemoryManager>(&target.method_allocator_, target.planned_.get(),
                                                                        &target.temp_allocator_);
}

void Graph::load_method(const std::string& name, GraphMethod& target) {
  PlatformScope scope;
  target.name = name;
  const MethodMeta meta = program_->method_meta(name.c_str()).get();
  prepare_memory(target, meta);
  for (size_t i = 0; i < meta.num_backends(); ++i) {
    const Result<const char*> backend = meta.get_backend_name(i);
    if (backend.ok() && executorch::runtime::get_backend_class(*backend) == nullptr)
      throw Failure(SF_MISSING_OPERATOR, "method " + name + " needs the backend " + *backend + ", which this library does not carry");
  }
  const XnnpackOptions options;
  Error error = Error::Ok;
  const auto load = [&] {
    scope.clear();
    Result<executorch::runtime::Method> method =
        program_->load_method(name.c_str(), target.memory_.get(), nullptr, nullptr, options.map());
    error = method.error();
    if (method.ok()) target.method_ = std::make_unique<executorch::runtime::Method>(std::move(method.get()));
  };
  load();
  if (error != Error::Ok && scope.missing_operators().find("quantized_decomposed::") != std::string::npos &&
      load_quantized_kernels())
    load();
  if (error != Error::Ok) {
    const std::string missing = scope.missing_operators();
    if (error == Error::OperatorMissing || !missing.empty())
      throw Failure(SF_MISSING_OPERATOR, "method " + name + " needs operators that this library does not carry: " +
                                             (missing.empty() ? scope.errors() : missing));
    throw Failure(SF_BAD_PROGRAM, "method " + name + " cannot be loaded (ExecuTorch error " +
                                      std::to_string(static_cast<int>(error)) + "): " + scope.errors());
  }
  bind_inputs(target, meta);
  bind_outputs(target, meta);
}

void Graph::bind_inputs(GraphMethod& target, const MethodMeta& meta) {
  const std::string& name = target.name;
  const std::vector<int64_t> ids = shape_of(tensor_input(name, meta, 0));
  if (ids.size() != 1) bad_program(name, "input_ids must have one dimension");
  const int64_t rows = target.rows = ids[0];
  const int64_t row_count = 1;
  const std::vector<std::pair<const char*, std::vector<int64_t>>> small = {
      {"input_ids", {rows}}, {"position_ids", {rows}}, {"ancestors", {rows, rows}}, {"cache_length", {row_count}}};
  const std::vector<int64_t> cache_shape = {shapes_.capacity, shapes_.kv_heads, shapes_.head_dim};

  for (size_t i = 0; i < meta.num_inputs(); ++i) {
    const TensorInfo info = tensor_input(name, meta, i);
    void* data = nullptr;
    if (i < static_cast<size_t>(kSmallInputs)) {
      require(name, small[i].first, info, i == 2 ? ScalarType::Bool : ScalarType::Long, small[i].second);
      target.blocks_.emplace_back(info.nbytes());
      data = target.blocks_.back().data();
    } else {
      const size_t cache = i - kSmallInputs;
      const std::string what = (cache % 2 == 0 ? "key_cache_" : "value_cache_") + std::to_string(cache / 2);
      require(name, what, info, ScalarType::Float, cache_shape);
      if (info.is_memory_planned())
        bad_program(name, what + " has planned memory and would be copied in every pass; lower with "
                                 "MemoryPlanningPass(alloc_graph_input=False, alloc_graph_output=False)");
      data = caches_[cache].data();
    }
    target.input_is_planned_.push_back(info.is_memory_planned());
    target.sizes_.emplace_back(info.sizes().begin(), info.sizes().end());
    target.orders_.emplace_back(info.dim_order().begin(), info.dim_order().end());
    target.tensors_.push_back(std::make_unique<TensorImpl>(info.scalar_type(), static_cast<ssize_t>(target.sizes_.back().size()),
                                                           target.sizes_.back().data(), data, target.orders_.back().data()));
  }
  target.input_ids = static_cast<int64_t*>(target.tensors_[0]->mutable_data());
  target.position_ids = static_cast<int64_t*>(target.tensors_[1]->mutable_data());
  target.ancestors = static_cast<bool*>(target.tensors_[2]->mutable_data());
  target.cache_length = static_cast<int64_t*>(target.tensors_[3]->mutable_data());

  PlatformScope scope;
  for (size_t i = 0; i < target.tensors_.size(); ++i) {
    const Error error = target.method_->set_input(EValue(executorch::aten::Tensor(target.tensors_[i].get())), i);
    if (error != Error::Ok) bad_program(name, "input " + std::to_string(i) + " cannot be bound: " + scope.errors());
  }
}

void Graph::bind_outputs(GraphMethod& target, const MethodMeta& meta) {
  const std::string& name = target.name;
  const int64_t caches = 2 * shapes_.layers, extra = static_cast<int64_t>(meta.num_outputs()) - caches;
  if (extra != 0 && extra != 1 && extra != 2 && extra != 4)
    bad_program(name, "it has " + std::to_string(meta.num_outputs()) + " outputs, not new keys and values of " +
                          std::to_string(shapes_.layers) + " layers after 0, 1, 2 or 4 others");
  PlatformScope scope;
  std::vector<Output> outputs;
  for (size_t i = 0; i < meta.num_outputs(); ++i) {
    const TensorInfo info = tensor_output(name, meta, i);
    Output output;
    output.index = i;
    output.dtype = info.scalar_type();
    output.shape = shape_of(info);
    output.planned = info.is_memory_planned();
    require(name, "output " + std::to_string(i), info, output.dtype, output.shape);
    if (!output.planned) {
      target.blocks_.emplace_back(info.nbytes());
      output.data = target.blocks_.back().data();
      if (target.method_->set_output_data_ptr(target.blocks_.back().data(), info.nbytes(), i) != Error::Ok)
        bad_program(name, "output " + std::to_string(i) + " cannot be bound: " + scope.errors());
    }
    outputs.push_back(output);
  }
  const auto expect = [&](const Output& output, const char* what, ScalarType dtype, size_t rank) {
    if (output.dtype != dtype || output.shape.size() != rank)
      bad_program(name, std::string(what) + " must be " + executorch::runtime::toString(dtype) + " of " + std::to_string(rank) +
                            " dimensions, but is " + executorch::runtime::toString(output.dtype) + " " + shape_text(output.shape));
  };
  size_t next = 0;
  target.keep = target.rows;
  if (extra >= 1) {
    target.logits = outputs[next++];
    expect(target.logits, "logits", ScalarType::Float, 2);
    target.has_logits = true;
    target.keep = target.logits.shape[0];
    const int64_t vocabulary = target.logits.shape[1];
    if (shapes_.vocab_size != 0 && shapes_.vocab_size != vocabulary) bad_program(name, "its vocabulary differs from the other methods'");
    shapes_.vocab_size = vocabulary;
  }
  if (extra >= 2) {
    target.kept = outputs[next++];
    expect(target.kept, "kept", ScalarType::Long, 1);
    target.has_kept = true;
    if (target.kept.shape[0] != target.keep) bad_program(name, "kept and logits differ in rows");
  }
  if (target.keep > target.rows || (!target.has_kept && target.keep != target.rows))
    bad_program(name, "it keeps " + std::to_string(target.keep) + " of " + std::to_string(target.rows) + " rows without naming them");
  if (extra == 4) {
    target.stream_ids = outputs[next++];
    target.stream_log_probs = outputs[next++];
    expect(target.stream_ids, "stream_ids", ScalarType::Long, 3);
    expect(target.stream_log_probs, "stream_log_probs", ScalarType::Float, 3);
    if (target.stream_ids.shape != target.stream_log_probs.shape || target.stream_ids.shape[0] != target.keep)
      bad_program(name, "stream_ids and stream_log_probs must both be [keep, num_streams, top_k]");
    target.has_streams = true;
    shapes_.num_streams = target.stream_ids.shape[1];
    shapes_.top_k = target.stream_ids.shape[2];
  }
  target.new_rows.assign(outputs.begin() + next, outputs.end());
  for (size_t i = 0; i < target.new_rows.size(); ++i) {
    const Output& output = target.new_rows[i];
    const std::string what = (i % 2 == 0 ? "new_key_" : "new_value_") + std::to_string(i / 2);
    expect(output, what.c_str(), ScalarType::Float, 3);
    const int64_t n = output.shape[0];
    if ((n != target.rows && n != target.keep) || output.shape[1] != shapes_.kv_heads || output.shape[2] != shapes_.head_dim)
      bad_program(name, what + " must be [rows or keep, kv heads, head dim], but is " + shape_text(output.shape));
  }
}

void GraphMethod::set_small_inputs(bool planned_only) {
  for (size_t i = 0; i < static_cast<size_t>(kSmallInputs); ++i) {
    if (planned_only && !input_is_planned_[i]) continue;
    if (method_->set_input(EValue(executorch::aten::Tensor(tensors_[i].get())), i) != Error::Ok)
      throw Failure(SF_EXECUTION, "method " + name + ": input " + std::to_string(i) + " was refused");
  }
}

void GraphMethod::refresh_planned_outputs() {
  const auto refresh = [&](Output& output) {
    if (output.planned) output.data = method_->get_output(output.index).toTensor().const_data_ptr();
  };
  if (has_logits) refresh(logits);
  if (has_kept) refresh(kept);
  if (has_streams) refresh(stream_ids), refresh(stream_log_probs);
  for (Output& output : new_rows) refresh(output);
}

void GraphMethod::execute() {
  PlatformScope scope;
  set_small_inputs(true);
  const Error error = method_->execute();
  temp_allocator_.reset();
  if (error != Error::Ok)
    throw Failure(SF_EXECUTION, "method " + name + " failed (ExecuTorch error " + std::to_string(static_cast<int>(error)) + "): " +
                                    scope.errors());
  refresh_planned_outputs();
}

void Graph::load_constant(const std::string& name) {
  PlatformScope scope;
  GraphMethod holder;
  const MethodMeta meta = program_->method_meta(name.c_str()).get();
  for (size_t i = 0; i < meta.num_memory_planned_buffers(); ++i) {
    holder.blocks_.emplace_back(static_cast<size_t>(meta.memory_planned_buffer_size(i).get()));
    holder.spans_.emplace_back(holder.blocks_.back().as<uint8_t>(), holder.blocks_.back().bytes());
  }
  holder.planned_ = std::make_unique<executorch::runtime::HierarchicalAllocator>(
      Span<Span<uint8_t>>(holder.spans_.data(), holder.spans_.size()));
  holder.memory_ = std::make_unique<executorch::runtime::MemoryManager>(&holder.method_allocator_, holder.planned_.get(),
                                                                        &holder.temp_allocator_);
  Result<executorch::runtime::Method> method = program_->load_method(name.c_str(), holder.memory_.get());
  if (!method.ok() || method->execute() != Error::Ok || method->outputs_size() == 0) return;
  const EValue& value = method->get_output(0);
  if (value.isInt())
    constants_[name] = std::to_string(value.toInt());
  else if (value.isBool())
    constants_[name] = value.toBool() ? "true" : "false";
  else if (value.isDouble())
    constants_[name] = std::to_string(value.toDouble());
  else if (value.isString())
    constants_[name] = quoted(std::string(value.toString().data(), value.toString().size()));
}

int64_t Graph::constant(const std::string& name, int64_t otherwise) const {
  const auto found = constants_.find(name);
  return found == constants_.end() ? otherwise : std::atoll(found->second.c_str());
}

GraphMethod& Graph::method(const std::string& name) {
  const auto found = methods_.find(name);
  if (found != methods_.end()) return *found->second;
  std::string known;
  for (const auto& entry : methods_) known += (known.empty() ? "" : ", ") + entry.first;
  throw Failure(SF_BAD_ARGUMENT, "there is no method " + name + "; this program has " + known);
}

int64_t Graph::most_rows() const {
  int64_t most = 0;
  for (const auto& entry : methods_) most = std::max(most, entry.second->rows);
  return most;
}

std::string Graph::describe() const {
  std::string methods, constants;
  for (const auto& entry : methods_) {
    const GraphMethod& m = *entry.second;
    methods += (methods.empty() ? "" : ", ") + quoted(m.name) + ": {\"rows\": " + std::to_string(m.rows) +
               ", \"keep\": " + std::to_string(m.keep) + ", \"logits\": " + (m.has_logits ? "true" : "false") +
               ", \"streams\": " + (m.has_streams ? "true" : "false") + "}";
  }
  for (const auto& entry : constants_) constants += (constants.empty() ? "" : ", ") + quoted(entry.first) + ": " + entry.second;
  const auto number = [](const char* key, int64_t value) { return ", " + quoted(key) + ": " + std::to_string(value); };
  return "{\"methods\": {" + methods + "}" + number("layers", shapes_.layers) + number("kv_heads", shapes_.kv_heads) +
         number("head_dim", shapes_.head_dim) + number("capacity", shapes_.capacity) + number("vocab_size", shapes_.vocab_size) +
         number("num_streams", shapes_.num_streams) + number("top_k", shapes_.top_k) + ", \"constants\": {" + constants + "}" +
         number("threads", PoolLease::threads()) + ", \"instruction_set\": " + quoted(lane_kernels().name) +
         number("cache_bytes", 2 * shapes_.layers * shapes_.capacity * shapes_.cache_row() * 4) + "}";
}

}  // namespace streamfuse
