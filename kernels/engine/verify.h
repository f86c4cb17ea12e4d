// What a program file says of itself, checked before ExecuTorch runs it: ExecuTorch's own check covers offsets inside
// the file, not to what the numbers mean.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace streamfuse {

// The bytes of a .pte. Every index of every method must name something that is there, every tensor must have a sound
// shape, nothing may be missing that ExecuTorch takes for granted, and what a method gives must not be a constant.
// Throws Failure(SF_BAD_PROGRAM) naming `path`, the method and the place.
void verify_program(const std::string& path, std::span<const uint8_t> file);

}  // namespace streamfuse
