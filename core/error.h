// How the core's parts report failure: an exception inside the library, a code and a sentence at the C interface.
#pragma once

#include <exception>
#include <stdexcept>
#include <string>

#include "streamfuse_core.h"

namespace streamfuse {

struct Failure : std::runtime_error {
  Failure(int code, const std::string& sentence) : std::runtime_error(sentence), code(code) {}
  int code;
};

// Runs several actions to the end and keeps the first failure.
class FirstFailure {
 public:
  template <typename Action>
  void attempt(const Action& action) {
    try {
      action();
    } catch (const Failure&) {
      if (first_ == nullptr) first_ = std::current_exception();
    }
  }
  void rethrow() const {
    if (first_ != nullptr) std::rethrow_exception(first_);
  }

 private:
  std::exception_ptr first_;
};

// Maps SF_END from a failed callback to SF_EXECUTION: interface functions return SF_END at the end of a text.
inline int failure_code(int code) { return code == SF_END ? int{SF_EXECUTION} : code; }

[[noreturn]] inline void bad(const std::string& sentence) { throw Failure(SF_BAD_ARGUMENT, sentence); }

}  // namespace streamfuse
