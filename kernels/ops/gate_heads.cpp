#include "rounding.h"

#include "gate_heads.h"

#include "lane_kernels.h"
#include "team.h"

namespace streamfuse {
namespace {
constexpr int64_t kSerialGates = 32;  // fewer rows run on the calling thread
}

void gate_heads(const GateHeads& args) {
  const auto rows = [=](int64_t begin, int64_t end, int) {
    for (int64_t head = begin * args.heads; head < end * args.heads; ++head)
      lane_kernels().products->scale_by_sigmoid(args.x + head * args.head_dim, args.gates[head], args.head_dim,
                                                args.out + head * args.head_dim);
  };
  if (args.rows < kSerialGates)
    rows(0, args.rows, 0);
  else
    share_out(args.rows, even_chunk(args.rows), rows);
}

}  // namespace streamfuse
