#include "program.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <span>
#include <system_error>
#include <thread>
#include <vector>

#include <executorch/extension/memory_allocator/malloc_memory_allocator.h>
#include <executorch/runtime/backend/interface.h>
#include <executorch/runtime/executor/method.h>

#include "block.h"
#include "delegates.h"
#include "error.h"
#include "json_string.h"
#include "ops/lane_kernels.h"
#include "ops/register.h"
#include "ops/team.h"
#include "rounding.h"
#include "streamfuse_engine.h"
#include "verify.h"

namespace streamfuse {
namespace {

using executorch::runtime::Error;
using executorch::runtime::EValue;
using executorch::runtime::MethodMeta;
using executorch::runtime::Result;
using executorch::runtime::Span;

// Where to find a backend that this library was not linked with.
std::string where_it_is(const std::string& backend) {
  if (backend != "CoreMLBackend") return "";
  return ": for Apple's systems ios_demo/tools/xcframework --coreml builds one that does";
}

std::string entry(const char* name, int64_t value) { return json_string(name) + ": " + std::to_string(value); }
std::string flag(const char* name, bool value) { return json_string(name) + (value ? ": true" : ": false"); }

std::string joined(const std::vector<std::string>& parts) {
  std::string all;
  for (const std::string& part : parts) all += (all.empty() ? "" : ", ") + part;
  return all;
}

constexpr char kAfterAdapter = '.';  // between the names of an adapter and its method
constexpr const char* kOwnOperators = "streamfuse::";

// The adapters that a program has methods for.
std::vector<std::string> adapters_of(const executorch::runtime::Program& program) {
  std::vector<std::string> names;
  for (size_t i = 0; i < program.num_methods(); ++i) {
    const Result<const char*> found = program.get_method_name(i);
    const std::string name = found.ok() ? *found : "";
    const std::string adapter = name.substr(0, std::min(name.find(kAfterAdapter), name.size()));
    if (adapter.size() < name.size() && std::find(names.begin(), names.end(), adapter) == names.end())
      names.push_back(adapter);
  }
  return names;
}

}  // namespace

Program::Program(const std::string& path, int num_threads) : threads_(team_size(num_threads)), process_(getpid()) {
  if (lane_kernels().fuses_products()) throw Failure(SF_BROKEN, kFusesProducts);
  register_operators();
  PlatformScope scope;
  loader_ = std::make_unique<Loader>(path);
  read_ahead(path);
  calls_own_operators_ = verify(path);
  using ExecuTorchProgram = executorch::runtime::Program;
  Result<ExecuTorchProgram> program =
      ExecuTorchProgram::load(loader_.get(), ExecuTorchProgram::Verification::InternalConsistency);
  if (!program.ok())
    throw Failure(SF_BAD_PROGRAM, path + " is not an ExecuTorch program, or is damaged: " + scope.errors());
  program_ = std::make_shared<ExecuTorchProgram>(std::move(program.get()));
  read_methods(path);
}

Program::Program(const Program& whole, const std::string& adapter)
    : threads_(whole.threads_),
      process_(getpid()),
      calls_own_operators_(whole.calls_own_operators_),
      prefix_(adapter + kAfterAdapter),
      loader_(whole.loader_),
      program_(whole.program_) {
  const std::vector<std::string> names = adapters_of(*program_);
  if (std::find(names.begin(), names.end(), adapter) == names.end())
    throw Failure(SF_BAD_ARGUMENT,
                  "there is no adapter " + adapter + "; this program has " + (names.empty() ? "none" : joined(names)));
  shapes_.window = whole.shapes_.window;
  if (shapes_.window > 0) shapes_.capacity = whole.shapes_.capacity;
  read_methods("adapter " + adapter);
  if (shapes_.layers != whole.shapes_.layers || shapes_.capacity != whole.shapes_.capacity ||
      shapes_.vocab_size != whole.shapes_.vocab_size)
    throw Failure(SF_BAD_PROGRAM, "adapter " + adapter +
                                      " has another number of layers, another capacity or another "
                                      "vocabulary than its base model");
}

void Program::read_methods(const std::string& path) {
  PlatformScope scope;
  std::vector<std::string> passes, constants;
  for (size_t i = 0; i < program_->num_methods(); ++i) {
    const Result<const char*> found = program_->get_method_name(i);
    const std::string in_file = found.ok() ? *found : "";
    if (!in_file.starts_with(prefix_)) continue;
    const std::string name = in_file.substr(prefix_.size());
    if (name.empty() || name.find(kAfterAdapter) != std::string::npos) continue;  // an adapter's
    const Result<MethodMeta> meta = program_->method_meta(in_file.c_str());
    if (!meta.ok()) throw Failure(SF_BAD_PROGRAM, path + ": method " + in_file + " cannot be read: " + scope.errors());
    if (meta->num_inputs() == 0) {
      constants.push_back(name);
      continue;
    }
    passes.push_back(name);
    check_backends(passes.back());
    if (meta->num_memory_planned_buffers() > 0)
      arena_bytes_ = std::max(arena_bytes_, static_cast<size_t>(meta->memory_planned_buffer_size(0).get()));
  }
  for (const std::string& name : constants) load_constant(name);
  read_window(path);
  for (const std::string& name : passes)
    if (name != kStreams) read_cache_shapes(name, meta_of(name), shapes_);
  if (shapes_.layers == 0) throw Failure(SF_BAD_PROGRAM, path + " has no method with key and value caches");
  for (const std::string& name : passes) signatures_.emplace(name, read_signature(name, meta_of(name), shapes_));
  if (const auto layers = constant("get_n_msa_layers"))
    num_msa_layers_ = *layers;
  else if (const auto streams = signatures_.find(kStreams); streams != signatures_.end())
    num_msa_layers_ = shapes_.layers - static_cast<int64_t>(streams->second.skipped_caches) / 2;
  for (const std::string& name : passes)
    if (pool_ == nullptr && meta_of(name).uses_backend(kXnnpack)) pool_ = std::make_unique<PoolLease>(threads_);
  if (pool_ != nullptr && pool_->threads() > 0) threads_ = pool_->threads();
#if !defined(__ANDROID__)
  // On Android the first pass starts the threads, because threads inherit the priority and the cores of their creator,
  // and a background thread may have loaded the model.
  if (calls_own_operators_) reserve_team(threads_);
#endif
}

void Program::check_process() const {
  const bool has_threads = has_vendors_delegate_ || (pool_ != nullptr && pool_->threads() != 1);  // 1: the caller's own
  if (!has_threads || process_ == getpid()) return;
  throw Failure(SF_BROKEN, std::string("this process was forked after the model was loaded, and ") +
                               (has_vendors_delegate_ ? "the model's delegate" : "XNNPACK") +
                               " has no threads in it: load models after forking only");
}

std::optional<int64_t> Program::constant(const std::string& name) const {
  const auto found = constants_.find(name);
  return found == constants_.end() ? std::nullopt : std::optional<int64_t>(std::atoll(found->second.c_str()));
}

// With rings, no cache needs to have all positions of the context.
void Program::read_window(const std::string& path) {
  const auto window = constant("get_sliding_window");
  if (!window) return;
  const int64_t capacity = constant("get_max_context_len").value_or(0);
  if (*window < 1 || capacity <= *window || capacity > std::numeric_limits<int32_t>::max())
    throw Failure(SF_BAD_PROGRAM, path + ": a window of " + std::to_string(*window) +
                                      " tokens does not fit a context of " + std::to_string(capacity));
  shapes_.window = *window;
  shapes_.capacity = capacity;
}

MethodMeta Program::meta_of(const std::string& method) const {
  return program_->method_meta(name_in_file(method).c_str()).get();
}

bool Program::verify(const std::string& path) const {
  using executorch::runtime::DataLoader;
  const size_t size = loader_->size().get();
  const Result<executorch::runtime::FreeableBuffer> file =
      loader_->load(0, size, DataLoader::SegmentInfo(DataLoader::SegmentInfo::Type::Program));
  if (!file.ok()) throw Failure(SF_BAD_PROGRAM, "cannot map " + path);
  const std::span<const uint8_t> bytes(static_cast<const uint8_t*>(file->data()), file->size());
  verify_program(path, bytes);
  return calls_operators(bytes, kOwnOperators);
}

void Program::check_backends(const std::string& name) {
  const MethodMeta meta = meta_of(name);
  for (size_t i = 0; i < meta.num_backends(); ++i) {
    const Result<const char*> backend = meta.get_backend_name(i);
    if (!backend.ok()) continue;
    const std::string needs = "method " + name + " needs the backend " + *backend;
    if (is_vendors(*backend)) {
      has_vendors_delegate_ = true;
      const VendorOutput output(true);
      const std::string missing = load_delegate(*backend);
      if (!missing.empty()) throw Failure(SF_MISSING_OPERATOR, needs + ": " + missing);
    } else if (executorch::runtime::get_backend_class(*backend) == nullptr) {
      throw Failure(SF_MISSING_OPERATOR, needs + ", which this library does not include" + where_it_is(*backend) +
                                             "; export the bundle with --backend kernels");
    }
  }
}

void Program::load_constant(const std::string& name) {
  PlatformScope scope;
  const MethodMeta meta = meta_of(name);
  executorch::extension::MallocMemoryAllocator method_allocator, temp_allocator;
  std::vector<Block> blocks;
  std::vector<Span<uint8_t>> spans;
  for (size_t i = 0; i < meta.num_memory_planned_buffers(); ++i) {
    blocks.emplace_back(static_cast<size_t>(meta.memory_planned_buffer_size(i).get()));
    spans.emplace_back(blocks.back().as<uint8_t>(), blocks.back().bytes());
  }
  executorch::runtime::HierarchicalAllocator planned({spans.data(), spans.size()});
  executorch::runtime::MemoryManager memory(&method_allocator, &planned, &temp_allocator);
  Result<executorch::runtime::Method> method = program_->load_method(name_in_file(name).c_str(), &memory);
  if (!method.ok() || method->execute() != Error::Ok || method->outputs_size() == 0) return;
  const EValue& value = method->get_output(0);
  if (value.isInt())
    constants_[name] = std::to_string(value.toInt());
  else if (value.isBool())
    constants_[name] = value.toBool() ? "true" : "false";
  else if (value.isDouble())
    constants_[name] = std::isfinite(value.toDouble()) ? std::to_string(value.toDouble()) : "null";
  else if (value.isString())
    constants_[name] = json_string(std::string(value.toString().data(), value.toString().size()));
}

const Signature& Program::signature(const std::string& name) const {
  const auto found = signatures_.find(name);
  if (found != signatures_.end()) return found->second;
  std::vector<std::string> known;
  for (const auto& [method, signature] : signatures_) known.push_back(method);
  throw Failure(SF_BAD_ARGUMENT, "there is no method " + name + "; this program has " + joined(known));
}

std::string Program::describe() const {
  std::vector<std::string> methods, constants, heads, dims;
  int64_t cache_bytes = 0;
  for (size_t i = 0; i < 2 * shapes_.positions.size(); ++i) cache_bytes += shapes_.cache_bytes(i);
  cache_bytes += shapes_.num_states * shapes_.state_bytes();
  for (const auto& [name, s] : signatures_)
    methods.push_back(json_string(name) + ": {" +
                      joined({entry("rows", s.rows), entry("keep", s.keep), flag("logits", s.logits.has_value()),
                              flag("streams", s.stream_ids.has_value()), entry("carrying", s.carrying),
                              flag("hidden", s.hidden.has_value())}) +
                      "}");
  for (const int64_t count : shapes_.kv_heads) heads.push_back(std::to_string(count));
  for (const int64_t size : shapes_.head_dims) dims.push_back(std::to_string(size));
  for (const auto& [name, value] : constants_) constants.push_back(json_string(name) + ": " + value);
  return "{" +
         joined({"\"methods\": {" + joined(methods) + "}", entry("layers", shapes_.layers),
                 "\"kv_heads\": [" + joined(heads) + "]", "\"head_dims\": [" + joined(dims) + "]",
                 entry("capacity", shapes_.capacity), entry("vocab_size", shapes_.vocab_size),
                 entry("num_streams", shapes_.num_streams), entry("top_k", shapes_.top_k),
                 "\"constants\": {" + joined(constants) + "}", entry("threads", threads_),
                 json_string("instruction_set") + ": " + json_string(lane_kernels().name),
                 entry("cache_bytes", cache_bytes)}) +
         "}";
}

}  // namespace streamfuse
