#include "rounding.h"

#include "gate_heads.h"

#include "lane_kernels.h"
#include "team.h"

namespace streamfuse {
namespace {

constexpr int64_t kSerialGates = 32;  // fewer rows run on the calling thread

template <typename Rows>
void share_gates(int64_t count, const Rows& rows) {
  if (count < kSerialGates)
    rows(0, count, 0);
  else
    share_out(count, even_chunk(count), rows);
}

}  // namespace

void gate_heads(const GateHeads& args) {
  share_gates(args.rows, [=](int64_t begin, int64_t end, int) {
    const int64_t first = begin * args.heads, last = end * args.heads;
    const ProductKernels& kernels = *lane_kernels().products;
    if (args.head_dim == 1) {
      kernels.scale_by_sigmoids(args.x + first, args.gates + first, last - first, args.out + first);
      return;
    }
    for (int64_t head = first; head < last; ++head)
      kernels.scale_by_sigmoid(args.x + head * args.head_dim, args.gates[head], args.head_dim,
                               args.out + head * args.head_dim);
  });
}

void silu_gate(const GateHeads& args) {
  share_gates(args.rows, [=](int64_t begin, int64_t end, int) {
    const int64_t first = begin * args.heads, last = end * args.heads;
    const float* const gates = args.gates + first;
    lane_kernels().products->scale_by_sigmoids(gates, gates, last - first, args.out + first);
    for (int64_t i = first; i < last; ++i) args.out[i] *= args.x[i];
  });
}

void gelu_gate(const GateHeads& args) {
  share_gates(args.rows, [=](int64_t begin, int64_t end, int) {
    const int64_t first = begin * args.heads, last = end * args.heads;
    lane_kernels().products->scale_by_gelus(args.x + first, args.gates + first, last - first, args.out + first);
  });
}

}  // namespace streamfuse
