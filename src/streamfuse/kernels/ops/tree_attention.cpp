#include "rounding.h"

#include "tree_attention.h"

#include <algorithm>
#include <vector>

#include "lane_kernels.h"
#include "scratch.h"
#include "team.h"

namespace streamfuse {
namespace {

// Multiply-adds below which sharing out costs more than it saves (about a microsecond of work).
constexpr int64_t kSerialAttention = 30000;
constexpr int64_t kMostRows = 4;

// The visible rows of every row, back to back: row i has list[starts[i]] .. list[starts[i + 1]].
struct VisibleRows {
  std::vector<int32_t> list;
  std::vector<int64_t> starts;

  void fill(const bool* flags, int64_t rows, int64_t stride) {
    const auto* const visible = reinterpret_cast<const uint8_t*>(flags);  // a damaged program's are no bools
    list.clear();
    starts.assign(1, 0);
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < rows; ++j)
        if (visible[i * stride + j]) list.push_back(static_cast<int32_t>(j));
      starts.push_back(static_cast<int64_t>(list.size()));
    }
  }
};

}  // namespace

void tree_attention(const TreeAttention& args) {
  thread_local VisibleRows seen_by_this_thread;
  VisibleRows& seen = seen_by_this_thread;
  seen.fill(args.visible, args.rows, args.visible_stride);
  const LaneKernels& kernels = lane_kernels();
  const int64_t queries = args.query_heads / args.kv_heads, threads = team_limit();
  int64_t block = kMostRows;  // rows that read keys and values together
  while (block > 1 && args.kv_heads * ((args.rows + block - 1) / block) < 2 * threads) block /= 2;
  const int64_t blocks = (args.rows + block - 1) / block, tasks = blocks * args.kv_heads;
  const int64_t scratch_floats = attention_scratch(block * queries, args.head_dim, args.cache_length + args.rows);

  const int64_t stride = static_cast<int64_t>(Scratch::size_of<float>(scratch_floats) / sizeof(float));
  Scratch scratch(threads * Scratch::size_of<float>(scratch_floats));
  float* const lines = scratch.take<float>(threads * stride);

  const auto run_tasks = [=, &kernels, list = seen.list.data(), starts = seen.starts.data()](int64_t begin, int64_t end,
                                                                                             int thread) {
    for (int64_t task = begin; task < end; ++task) {
      const int64_t first = task % blocks * block, rows = std::min(block, args.rows - first);
      kernels.attend(args, {first, rows, task / blocks, list, starts + first}, lines + thread * stride);
    }
  };

  const int64_t positions = args.cache_length * args.rows + static_cast<int64_t>(seen.list.size());
  if (2 * positions * args.query_heads * args.head_dim < kSerialAttention)
    run_tasks(0, tasks, 0);
  else
    share_out(tasks, even_chunk(tasks), run_tasks);
}

}  // namespace streamfuse
