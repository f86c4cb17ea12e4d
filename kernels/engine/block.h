// Zeroed memory, aligned to 64 bytes and freed by the destructor. Large blocks are pages of their own: they use none
// until they are written, and `release` returns them to the system.
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
    if (bytes >= kPages) {
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
  // The contents are lost: zeros or what they were.
  void release() {
    if (bytes_ < kPages) return;
#if defined(__APPLE__)
    (void)madvise(data_, bytes_, MADV_FREE);
#else
    (void)madvise(data_, bytes_, MADV_DONTNEED);
#endif
  }

 private:
  static constexpr size_t kPages = size_t{64} << 10;
  struct Free {
    size_t pages;  // bytes of a mapping; 0: memory of the heap
    void operator()(void* memory) const { pages > 0 ? void(munmap(memory, pages)) : std::free(memory); }
  };
  std::unique_ptr<void, Free> memory_{nullptr, Free{0}};
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace streamfuse
