// Checks the contents of a program file before ExecuTorch runs it. ExecuTorch's own verification only covers offsets
// inside the file, not their meaning.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace streamfuse {

// `file` has the bytes of a .pte. Every index must refer to something that exists, tensors must have valid shapes,
// fields that ExecuTorch assumes must be present, and outputs must not be constants. Throws Failure(SF_BAD_PROGRAM)
// that names `path`, the method and the location.
void verify_program(const std::string& path, std::span<const uint8_t> file);

}  // namespace streamfuse
