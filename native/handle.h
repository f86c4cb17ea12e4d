// Handles of the C interfaces below, which free themselves, and their failures as exceptions.
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

// The place of a handle for a function that makes it; it is owned also where that function fails.
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
