// A loaded .pte: its methods with every input and output bound to memory of ours, and the shared caches.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <executorch/extension/data_loader/mmap_data_loader.h>
#include <executorch/extension/memory_allocator/malloc_memory_allocator.h>
#include <executorch/runtime/executor/memory_manager.h>
#include <executorch/runtime/executor/method.h>
#include <executorch/runtime/executor/program.h>

#include "platform.h"

namespace streamfuse {

// Zeroed, 64-byte aligned, given back at the end. Large blocks cost no pages until they are written.
class Block {
 public:
  Block() = default;
  explicit Block(size_t bytes);
  template <typename T>
  T* as() const {
    return static_cast<T*>(data_);
  }
  void* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  std::unique_ptr<void, void (*)(void*)> memory_{nullptr, nullptr};
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

// Shapes shared by all methods.
struct Shapes {
  int64_t layers = 0, capacity = 0, kv_heads = 0, head_dim = 0, vocab_size = 0, num_streams = 0, top_k = 0;
  int64_t cache_row() const { return kv_heads * head_dim; }  // floats per position, layer and kind
};

// One of the method's outputs; `data` is ours where the exporter left the output unplanned, else inside the arena.
struct Output {
  const void* data = nullptr;
  std::vector<int64_t> shape;
  executorch::aten::ScalarType dtype = executorch::aten::ScalarType::Float;
  size_t index = 0;  // among the method's outputs
  bool planned = false;
};

class GraphMethod {
 public:
  std::string name;
  int64_t rows = 0;
  int64_t keep = 0;
  bool has_logits = false;
  bool has_kept = false;
  bool has_streams = false;
  Output logits, kept, stream_ids, stream_log_probs;
  std::vector<Output> new_rows;  // new_key_0, new_value_0, new_key_1, ...

  // The buffers the next execute() reads.
  int64_t* input_ids = nullptr;
  int64_t* position_ids = nullptr;
  bool* ancestors = nullptr;
  int64_t* cache_length = nullptr;

  void execute();

 private:
  friend class Graph;
  void set_small_inputs(bool planned_only);
  void refresh_planned_outputs();

  // Declared in the order of dependence: the method goes first at destruction.
  executorch::extension::MallocMemoryAllocator method_allocator_, temp_allocator_;
  std::vector<executorch::runtime::Span<uint8_t>> spans_;
  std::unique_ptr<executorch::runtime::HierarchicalAllocator> planned_;
  std::unique_ptr<executorch::runtime::MemoryManager> memory_;
  std::vector<Block> blocks_;
  std::vector<std::unique_ptr<executorch::aten::TensorImpl>> tensors_;
  std::vector<std::vector<int32_t>> sizes_;
  std::vector<std::vector<uint8_t>> orders_;
  std::vector<bool> input_is_planned_;
  std::unique_ptr<executorch::runtime::Method> method_;
};

class Graph {
 public:
  Graph(const std::string& path, int num_threads);
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  GraphMethod& method(const std::string& name);
  int64_t most_rows() const;  // of any method
  const Shapes& shapes() const { return shapes_; }
  float* cache(size_t index) const { return caches_[index].as<float>(); }  // key_cache_0, value_cache_0, ...
  size_t n_caches() const { return caches_.size(); }
  std::string describe() const;
  // A constant method's integer, or `otherwise`.
  int64_t constant(const std::string& name, int64_t otherwise) const;

 private:
  using MethodMeta = executorch::runtime::MethodMeta;
  void load_method(const std::string& name, GraphMethod& target);
  void load_constant(const std::string& name);
  void read_shapes(const std::string& name, const MethodMeta& meta);
  void bind_inputs(GraphMethod& target, const MethodMeta& meta);
  void bind_outputs(GraphMethod& target, const MethodMeta& meta);
  void prepare_memory(GraphMethod& target, const MethodMeta& meta);

  PoolLease pool_;
  std::unique_ptr<executorch::extension::MmapDataLoader> loader_;
  std::unique_ptr<executorch::runtime::Program> program_;
  Shapes shapes_;
  std::vector<Block> caches_;
  Block arena_;  // activations (memory id 1), shared by the methods: one runs at a time
  std::map<std::string, std::unique_ptr<GraphMethod>> methods_;
  std::map<std::string, std::string> constants_;  // as JSON
};

}  // namespace streamfuse
