// Makes the operators known to ExecuTorch's registry, once per process.
#pragma once

namespace streamfuse {

// Registers all operators of docs/contracts.md, sections 6 and 7; leaves alone what is already there.
void register_operators();

}  // namespace streamfuse
