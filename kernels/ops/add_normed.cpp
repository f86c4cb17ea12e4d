#include "rounding.h"

#include "add_normed.h"

#include "lane_kernels.h"
#include "team.h"

namespace streamfuse {
namespace {
constexpr int64_t kSerialAdditions = 32;  // rows, as in prepare.cpp
}

void add_normed(const AddNormed& args) {
  const auto rows = [=](int64_t begin, int64_t end, int) {
    float* const out = args.out + begin * args.size;
    const float* const residual = args.residual + begin * args.size;
    lane_kernels().products->norm(args.x + begin * args.size, end - begin, args.weight, args.eps, args.size, out);
    for (int64_t i = 0; i < (end - begin) * args.size; ++i) out[i] += residual[i];
  };
  if (args.rows < kSerialAdditions)
    rows(0, args.rows, 0);
  else
    share_out(args.rows, even_chunk(args.rows), rows);
}

}  // namespace streamfuse
