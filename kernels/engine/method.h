// One method of a program, loaded for one sequence: every input and output is bound to memory that does not move.
#pragma once

#include <memory>
#include <vector>

#include <executorch/extension/memory_allocator/malloc_memory_allocator.h>
#include <executorch/runtime/core/event_tracer.h>
#include <executorch/runtime/executor/memory_manager.h>
#include <executorch/runtime/executor/method.h>

#include "block.h"
#include "program.h"

namespace streamfuse {

class GraphMethod {
 public:
  // `arena` contains the activations, program.arena_bytes() bytes; `caches` are those of the sequence, lowest layer
  // first. `tracer` may be null. Throws Failure.
  GraphMethod(const Program& program, const Signature& signature, const Block& arena, const std::vector<Block>& caches,
              const std::vector<Block>& states, executorch::runtime::EventTracer* tracer);
  GraphMethod(const GraphMethod&) = delete;
  GraphMethod& operator=(const GraphMethod&) = delete;

  const Signature& signature() const { return signature_; }
  // The memory of an input that is not a cache, by its index.
  template <typename T>
  T* input(size_t index) const {
    return static_cast<T*>(inputs_[index]->mutable_data());
  }
  // An output of the last execution.
  template <typename T>
  const T* output(size_t index) const {
    return static_cast<const T*>(outputs_[index]);
  }

  void execute();
  // Returns the memory of inputs, outputs and activations to the system: outputs are lost, and inputs must be written
  // again, as before every execution.
  void release();

 private:
  void load(const Program& program, executorch::runtime::EventTracer* tracer);
  void bind_inputs(const std::vector<Block>& caches, const std::vector<Block>& states);
  void bind_outputs();
  void set_input(size_t index);

  const Signature& signature_;
  // In the order of dependence: the method is destroyed first.
  executorch::extension::MallocMemoryAllocator method_allocator_, temp_allocator_;
  std::vector<Block> blocks_;
  std::vector<executorch::runtime::Span<uint8_t>> spans_;
  std::unique_ptr<executorch::runtime::HierarchicalAllocator> planned_;
  std::unique_ptr<executorch::runtime::MemoryManager> memory_;
  std::vector<std::vector<int32_t>> sizes_;
  std::vector<std::vector<uint8_t>> orders_;
  std::vector<std::unique_ptr<executorch::aten::TensorImpl>> inputs_;
  std::vector<const void*> outputs_;
  std::unique_ptr<executorch::runtime::Method> method_;
};

}  // namespace streamfuse
