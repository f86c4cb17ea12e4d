// How the core's parts report failure: an exception inside the library, a code and a sentence at the C interface.
#pragma once

#include <stdexcept>
#include <string>

#include "streamfuse_core.h"

namespace streamfuse {

struct Failure : std::runtime_error {
  Failure(int code, const std::string& sentence) : std::runtime_error(sentence), code(code) {}
  int code;
};

// The code of a caller's function that failed: SF_END of an interface function means that a text has ended.
inline int failure_code(int code) { return code == SF_END ? int{SF_EXECUTION} : code; }

[[noreturn]] inline void bad(const std::string& sentence) { throw Failure(SF_BAD_ARGUMENT, sentence); }

}  // namespace streamfuse
