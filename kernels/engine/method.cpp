#include "method.h"

#include <cstdlib>
#include <numeric>

#include <executorch/runtime/backend/backend_options_map.h>

#include "delegates.h"
#include "error.h"
#include "streamfuse_engine.h"

namespace streamfuse {
namespace {

using executorch::aten::Tensor;
using executorch::aten::TensorImpl;
using executorch::runtime::Error;
using executorch::runtime::EValue;
using executorch::runtime::Method;
using executorch::runtime::MethodMeta;
using executorch::runtime::Result;

// XNNPACK's options: one copy of packed weights for all methods, one workspace for all delegates of a program.
class XnnpackOptions {
 public:
  XnnpackOptions() {
    (void)options_.set_option("weight_cache_enabled",
                              option_from_environment("STREAMFUSE_XNNPACK_WEIGHT_CACHE", 1) != 0);
    (void)options_.set_option("workspace_sharing_mode",
                              option_from_environment("STREAMFUSE_XNNPACK_WORKSPACE", 1));  // 0 none, 1 model, 2 global
    (void)map_.set_options(kXnnpack, options_.view());
  }
  const executorch::runtime::LoadBackendOptionsMap* map() const { return &map_; }

 private:
  static int option_from_environment(const char* name, int otherwise) {
    const char* value = std::getenv(name);
    return value == nullptr || *value == 0 ? otherwise : std::atoi(value);
  }
  executorch::runtime::BackendOptions<4> options_;
  executorch::runtime::LoadBackendOptionsMap map_;
};

std::string error_text(Error error, const PlatformScope& scope) {
  return " (ExecuTorch error " + std::to_string(static_cast<int>(error)) + "): " + scope.errors();
}

}  // namespace

GraphMethod::GraphMethod(const Program& program, const Signature& signature, const Block& arena,
                         const std::vector<Block>& caches, const std::vector<Block>& states,
                         executorch::runtime::EventTracer* tracer)
    : signature_(signature) {
  const MethodMeta meta = program.executorch().method_meta(program.name_in_file(signature.name).c_str()).get();
  for (size_t i = 0; i < meta.num_memory_planned_buffers(); ++i) {
    const size_t bytes = static_cast<size_t>(meta.memory_planned_buffer_size(i).get());
    if (i > 0) blocks_.emplace_back(bytes);
    spans_.emplace_back(i == 0 ? arena.as<uint8_t>() : blocks_.back().as<uint8_t>(), bytes);
  }
  planned_ = std::make_unique<executorch::runtime::HierarchicalAllocator>(
      executorch::runtime::Span<executorch::runtime::Span<uint8_t>>(spans_.data(), spans_.size()));
  memory_ = std::make_unique<executorch::runtime::MemoryManager>(&method_allocator_, planned_.get(), &temp_allocator_);
  load(program, tracer);
  bind_inputs(caches, states);
  bind_outputs();
}

void GraphMethod::load(const Program& program, executorch::runtime::EventTracer* tracer) {
  PlatformScope scope;
  const VendorOutput output(program.has_vendors_delegate());
  const XnnpackOptions options;
  Error error = Error::Ok;
  const std::string name = program.name_in_file(signature_.name);
  const auto attempt = [&] {
    scope.clear();
    Result<Method> method =
        program.executorch().load_method(name.c_str(), memory_.get(), tracer, nullptr, options.map());
    error = method.error();
    if (method.ok()) method_ = std::make_unique<Method>(std::move(method.get()));
  };
  attempt();
  if (error != Error::Ok && scope.missing_operators().find("quantized_decomposed::") != std::string::npos &&
      load_quantized_kernels())
    attempt();
  if (error == Error::Ok) return;
  const std::string missing = scope.missing_operators();
  if (error == Error::OperatorMissing || !missing.empty())
    throw Failure(SF_MISSING_OPERATOR, "method " + signature_.name +
                                           " needs operators that this library does not include: " +
                                           (missing.empty() ? scope.errors() : missing));
  std::string vendors = output.errors();
  const Result<MethodMeta> meta = program.executorch().method_meta(name.c_str());
  for (size_t i = 0; vendors.empty() && meta.ok() && i < meta->num_backends(); ++i)
    if (const Result<const char*> backend = meta->get_backend_name(i); backend.ok()) vendors = vendors_advice(*backend);
  throw Failure(SF_BAD_PROGRAM, "method " + signature_.name + " cannot be loaded" + error_text(error, scope) +
                                    (vendors.empty() ? "" : "; " + vendors));
}

void GraphMethod::bind_inputs(const std::vector<Block>& caches, const std::vector<Block>& states) {
  const auto block_of = [&](size_t i) -> const Block& {
    if (i < signature_.first_state) return caches[signature_.skipped_caches + i - signature_.first_cache];
    return states[signature_.skipped_states + i - signature_.first_state];
  };
  for (size_t i = 0; i < signature_.inputs.size(); ++i) {
    const TensorFacts& facts = signature_.inputs[i];
    const bool is_cache = i >= signature_.first_cache;
    if (is_cache && facts.is_planned)
      bad_program(signature_.name,
                  "its caches have planned memory; export it with "
                  "MemoryPlanningPass(alloc_graph_input=False, alloc_graph_output=False)");
    if (!is_cache) blocks_.emplace_back(facts.bytes);
    void* data = is_cache ? block_of(i).data() : blocks_.back().data();
    sizes_.emplace_back(facts.shape.begin(), facts.shape.end());
    orders_.emplace_back(facts.shape.size());
    std::iota(orders_.back().begin(), orders_.back().end(), uint8_t{0});
    inputs_.push_back(std::make_unique<TensorImpl>(facts.dtype, static_cast<ssize_t>(sizes_.back().size()),
                                                   sizes_.back().data(), data, orders_.back().data()));
    set_input(i);
  }
}

void GraphMethod::set_input(size_t index) {
  PlatformScope scope;
  const Error error = method_->set_input(EValue(Tensor(inputs_[index].get())), index);
  if (error != Error::Ok)
    bad_program(signature_.name, "input " + std::to_string(index) + " cannot be bound" + error_text(error, scope));
}

void GraphMethod::bind_outputs() {
  PlatformScope scope;
  for (size_t i = 0; i < signature_.outputs.size(); ++i) {
    const TensorFacts& facts = signature_.outputs[i];
    outputs_.push_back(nullptr);
    if (facts.is_planned) continue;
    blocks_.emplace_back(facts.bytes);
    outputs_.back() = blocks_.back().data();
    const Error error = method_->set_output_data_ptr(blocks_.back().data(), facts.bytes, i);
    if (error != Error::Ok)
      bad_program(signature_.name, "output " + std::to_string(i) + " cannot be bound" + error_text(error, scope));
  }
}

void GraphMethod::execute() {
  PlatformScope scope;
  for (size_t i = 0; i < signature_.first_cache; ++i)
    if (signature_.inputs[i].is_planned) set_input(i);  // its memory is part of the method's plan, so it is copied
  scope.clear();
  const Error error = method_->execute();
  temp_allocator_.reset();
  if (error != Error::Ok)
    throw Failure(SF_EXECUTION, "method " + signature_.name + " failed" + error_text(error, scope));
  for (size_t i = 0; i < outputs_.size(); ++i)
    if (signature_.outputs[i].is_planned) outputs_[i] = method_->get_output(i).toTensor().const_data_ptr();
}

void GraphMethod::release() {
  for (Block& block : blocks_) block.release();
}

}  // namespace streamfuse
