// Zeroed memory, aligned to 64 bytes and freed by the destructor. Large blocks use no pages until they are written.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>

namespace streamfuse {

class Block {
 public:
  Block() = default;
  // Throws std::bad_alloc.
  explicit Block(size_t bytes) : bytes_(bytes) {
    if (bytes <= SIZE_MAX - 64) memory_ = {std::calloc(bytes + 64, 1), std::free};
    if (memory_ == nullptr) throw std::bad_alloc();
    data_ = reinterpret_cast<void*>((reinterpret_cast<uintptr_t>(memory_.get()) + 63) & ~uintptr_t{63});
  }
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

}  // namespace streamfuse
