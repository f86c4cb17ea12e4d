// RAII wrappers for the handles of the C interfaces below, with failures as exceptions.
#pragma once

#include <memory>

#include "error.h"

namespace streamfuse::native {

template <auto Free>
struct Freed {
  template <typename T>
  void operator()(T* handle) const {
    Free(handle);
  }
};
template <typename T, auto Free>
using Handle = std::unique_ptr<T, Freed<Free>>;

// The output argument of a function that creates a handle; the handle is owned even if that function fails.
template <typename T, auto Free>
class Made {
 public:
  explicit Made(Handle<T, Free>& owner) : owner_(owner) {}
  ~Made() { owner_.reset(made_); }
  operator T**() { return &made_; }

 private:
  Handle<T, Free>& owner_;
  T* made_ = nullptr;
};

inline void check(int code, const char* sentence) {
  if (code != SF_OK) throw Failure(code, sentence);
}

}  // namespace streamfuse::native
