// Registers the operators with ExecuTorch, once per process.
#pragma once

namespace streamfuse {

// Registers the operators of docs/contracts.md, sections 6 and 7, that are not registered yet.
void register_operators();

}  // namespace streamfuse
