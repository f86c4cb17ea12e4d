#include "top_k_log_prob.h"

#include "lane_kernels.h"
#include "team.h"

namespace streamfuse {

void top_k_log_prob(const TopKLogProb& args) {
  const LaneKernels& kernels = lane_kernels();
  share_out(args.rows, even_chunk(args.rows), [=, &kernels](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) kernels.top_k_row(args, row);
  });
}

}  // namespace streamfuse
