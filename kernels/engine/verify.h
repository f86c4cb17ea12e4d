// Checks the contents of a program file before ExecuTorch runs it. ExecuTorch's own verification only covers offsets
// inside the file, not their meaning.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace streamfuse {

// `file` has the bytes of a .pte. Every index must refer to something that exists, tensors must have valid shapes,
// fields that ExecuTorch assumes must be present, and outputs must not be constants. Throws Failure(SF_BAD_PROGRAM)
// that names `path`, the method and the location.
void verify_program(const std::string& path, std::span<const uint8_t> file);

// Whether a method of a verified program calls an operator whose name begins with `prefix`, such as "aten::". Operators
// inside delegated subgraphs do not count.
bool calls_operators(std::span<const uint8_t> file, std::string_view prefix);

}  // namespace streamfuse
