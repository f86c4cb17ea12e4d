// Zeroed memory, aligned to 64 bytes and freed by the destructor. A large block is a mapping of its own: its pages use
// no memory until they are written, and `release` returns them to the system. Its address never changes.
#pragma once

#include <sys/mman.h>

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
    if (bytes >= kLeastMapping) {
      void* const pages = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      if (pages == MAP_FAILED) throw std::bad_alloc();
      memory_ = {pages, Free{bytes}};
      data_ = pages;
      return;
    }
    memory_ = {std::calloc(bytes + 64, 1), Free{0}};
    if (memory_ == nullptr) throw std::bad_alloc();
    data_ = reinterpret_cast<void*>((reinterpret_cast<uintptr_t>(memory_.get()) + 63) & ~uintptr_t{63});
  }
  template <typename T>
  T* as() const {
    return static_cast<T*>(data_);
  }
  void* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  // Afterwards the contents are undefined. Small blocks keep their memory.
  void release() {
    if (bytes_ < kLeastMapping) return;
#if defined(__APPLE__)
    // madvise(MADV_FREE) leaves the pages to the process until the system runs short of memory. Zero pages in their
    // place free them now; where that fails, the block keeps its memory.
    (void)mmap(data_, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
#else
    (void)madvise(data_, bytes_, MADV_DONTNEED);
#endif
  }

 private:
  static constexpr size_t kLeastMapping = size_t{64} << 10;
  struct Free {
    size_t mapped;  // bytes of a mapping; 0: memory of the heap
    void operator()(void* memory) const { mapped > 0 ? void(munmap(memory, mapped)) : std::free(memory); }
  };
  std::unique_ptr<void, Free> memory_{nullptr, Free{0}};
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace streamfuse
