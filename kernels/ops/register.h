// Makes the operators known to ExecuTorch's registry, once per process.
#pragma once

namespace streamfuse {

// Registers streamfuse::tree_attention.out and streamfuse::top_k_log_prob.out; does nothing where they are already there.
void register_operators();

}  // namespace streamfuse
