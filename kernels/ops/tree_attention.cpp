#include "tree_attention.h"

#include <algorithm>
#include <vector>

#include "lane_kernels.h"
#include "scratch.h"
#include "team.h"

namespace streamfuse {
namespace {

// Multiply-adds below which sharing out costs more than it saves (about a microsecond of work).
constexpr int64_t kSerialWork = 30000;

// The visible rows of every row, back to back: row i has list[starts[i]] .. list[starts[i + 1]].
struct VisibleRows {
  std::vector<int32_t> list;
  std::vector<int64_t> starts;

  void fill(const bool* visible, int64_t rows) {
    list.clear();
    starts.assign(1, 0);
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < rows; ++j)
        if (visible[i * rows + j]) list.push_back(static_cast<int32_t>(j));
      starts.push_back(static_cast<int64_t>(list.size()));
    }
  }
};

}  // namespace

void tree_attention(const TreeAttention& args) {
  thread_local VisibleRows seen_by_this_thread;
  VisibleRows& seen = seen_by_this_thread;
  seen.fill(args.visible, args.rows);
  const LaneKernels& kernels = lane_kernels();
  const int64_t scratch_floats = attention_scratch(args.head_dim, args.cache_length + args.rows);

  Scratch scratch(team_limit() * Scratch::size_of<float>(scratch_floats));
  float* lines[kMostThreads];
  for (int thread = 0; thread < team_limit(); ++thread) lines[thread] = scratch.take<float>(scratch_floats);

  // Neighbouring tasks share a kv head, so a thread walks the same keys for all its rows.
  const auto run_tasks = [&](int64_t begin, int64_t end, int thread) {
    for (int64_t task = begin; task < end; ++task) {
      const int64_t kv_head = task / args.rows, row = task % args.rows;
      const int64_t start = seen.starts[row];
      kernels.attend(args, row, kv_head, seen.list.data() + start, seen.starts[row + 1] - start, lines[thread]);
    }
  };

  const int64_t tasks = args.rows * args.kv_heads;
  const int64_t positions = args.cache_length * args.rows + static_cast<int64_t>(seen.list.size());
  if (2 * positions * args.query_heads * args.head_dim < kSerialWork)
    run_tasks(0, tasks, 0);
  else
    share_out(tasks, even_chunk(tasks), run_tasks);
}

}  // namespace streamfuse
