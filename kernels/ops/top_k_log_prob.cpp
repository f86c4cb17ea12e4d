#include "top_k_log_prob.h"

#include <executorch/runtime/kernel/thread_parallel_interface.h>

#include "lane_kernels.h"

namespace streamfuse {
namespace {
constexpr int64_t kSerialColumns = 32768;  // rows * columns below which waking the thread pool does not pay
}

void top_k_log_prob(const TopKLogProb& args) {
  const LaneKernels& kernels = lane_kernels();
  const auto run_rows = [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) kernels.top_k_row(args, row);
  };
  if (args.rows * args.columns < kSerialColumns || !executorch::extension::parallel_for(0, args.rows, 1, run_rows))
    run_rows(0, args.rows);
}

}  // namespace streamfuse
