// Temporary memory of an operator: one block per calling thread, reused by the next call. The caller allocates for all
// threads of a job before it starts the job, so that no allocation can fail inside it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>

namespace streamfuse {

class Scratch {
 public:
  // Starts over with room for `bytes`; earlier pointers become invalid. Throws std::bad_alloc.
  explicit Scratch(size_t bytes) {
    thread_local Block block;
    bytes += kSlack;
    if (block.size < bytes) {
      block.memory.reset();
      block.size = 0;
      block.memory.reset(std::malloc(bytes));
      if (block.memory == nullptr) throw std::bad_alloc();
      block.size = bytes;
    }
    next_ = (reinterpret_cast<uintptr_t>(block.memory.get()) + 63) & ~uintptr_t{63};
  }

  // `count` elements, aligned to 64 bytes.
  template <typename T>
  T* take(int64_t count) {
    T* here = reinterpret_cast<T*>(next_);
    next_ += size_of<T>(count);
    return here;
  }

  template <typename T>
  static size_t size_of(int64_t count) {
    return (static_cast<size_t>(count) * sizeof(T) + 63) & ~size_t{63};
  }

 private:
  static constexpr size_t kSlack = 64;
  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };
  struct Block {
    std::unique_ptr<void, Free> memory;
    size_t size = 0;
  };
  uintptr_t next_;
};

}  // namespace streamfuse
