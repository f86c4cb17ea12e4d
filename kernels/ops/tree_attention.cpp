#include "rounding.h"

#include "tree_attention.h"

#include <algorithm>
#include <vector>

#include "lane_kernels.h"
#include "scratch.h"
#include "team.h"

namespace streamfuse {
namespace {

// Multiply-adds below which distributing the work costs more than it saves (about a microsecond of work).
constexpr int64_t kSerialAttention = 30000;
constexpr int64_t kMostRows = 16;         // rows of a task ...
constexpr int64_t kMostScores = 1 << 16;  // ... as long as their scores fit into the L2 cache

// The visible rows of every row, concatenated: row i has list[starts[i]] .. list[starts[i + 1]] (exclusive).
struct VisibleRows {
  std::vector<int32_t> list;
  std::vector<int64_t> starts;

  void fill(const bool* flags, int64_t rows, int64_t stride) {
    const auto* const visible =
        reinterpret_cast<const uint8_t*>(flags);  // bytes, since a damaged program may contain invalid bools
    list.clear();
    starts.assign(1, 0);
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < rows; ++j)
        if (visible[i * stride + j]) list.push_back(static_cast<int32_t>(j));
      starts.push_back(static_cast<int64_t>(list.size()));
    }
  }
};

// The same pass without the whole blocks before the windows of all rows, which are not read. What is left has the same
// groups of 32 positions and lanes, and wraps around the end of a ring at most once.
TreeAttention without_skipped(TreeAttention pass) {
  const int64_t skipped = pass.first_of(pass.cache_length) / kCacheBlock * kCacheBlock;
  if (skipped > 0) pass.begin = skipped % pass.cache.capacity;
  pass.cache_length -= skipped;
  return pass;
}

}  // namespace

AttentionBuffers AttentionBuffers::at(const TreeAttention& a, int64_t task_rows, uint8_t* memory) {
  size_t taken = 0;
  const auto take = [&]<typename T>(int64_t count, T*& place) {
    place = reinterpret_cast<T*>(reinterpret_cast<uintptr_t>(memory) + taken);
    taken += Scratch::size_of<T>(count);
  };
  const auto take_rounded = [&](int64_t rows, int64_t groups, Rounded& place) {
    place.rows = rows;
    place.groups = groups;
    take(rows * groups * kGroupSize, place.q);
    take(rows * groups, place.scale);
    take(rows * groups, place.share);
    take(rows * groups, place.start);
  };
  const int64_t group = a.query_heads / a.cache.kv_heads, queries = task_rows * group;
  const int64_t groups = a.cache.key_groups(), tiles = a.cache.value_tiles();
  const auto blocks_of = [](int64_t positions) { return (positions + kCacheBlock - 1) / kCacheBlock; };
  AttentionBuffers buffers;
  buffers.line = blocks_of(a.cache_length + a.rows) * kCacheBlock;
  buffers.tail_blocks = blocks_of(a.cache_length % kCacheBlock + a.rows);
  take(groups * kGroupSize, buffers.padded);
  take_rounded(queries, groups, buffers.query);
  take(queries * kTileRows, buffers.tile);
  take(queries * buffers.line, buffers.scores);
  take(queries, buffers.totals);
  take((a.rows + kTileRows - 1) / kTileRows * groups * kQ8TileBytes, buffers.fresh_keys);
  take_rounded(queries, a.cache_length / kCacheBlock, buffers.weights);
  take_rounded(group, buffers.tail_blocks, buffers.tail_weights);
  take(tiles * buffers.tail_blocks * kQ8TileBytes, buffers.tail);
  take(buffers.tail_blocks * kCacheBlock, buffers.tail_scales);
  take(tiles * queries * kTileRows, buffers.sums);
  buffers.bytes = taken;
  return buffers;
}

void store_key(const KvShape& shape, const float* row, int64_t position, uint8_t* cache) {
  for (int64_t head = 0; head < shape.kv_heads; ++head)
    lane_kernels().store_key(row + head * shape.head_dim, shape.head_dim, position, cache + shape.keys_of(head));
}

void store_value(const KvShape& shape, const float* row, int64_t position, uint8_t* cache) {
  for (int64_t head = 0; head < shape.kv_heads; ++head)
    lane_kernels().store_value(row + head * shape.head_dim, shape.head_dim, position, shape.blocks(),
                               cache + shape.values_of(head), reinterpret_cast<float*>(cache + shape.scales_of(head)));
}

void load_key(const KvShape& shape, const uint8_t* cache, int64_t head, int64_t position, float* key) {
  const int64_t groups = shape.key_groups(), lane = position % kTileRows;
  const uint8_t* tile = cache + shape.keys_of(head) + position / kTileRows * groups * kQ8TileBytes;
  for (int64_t d = 0; d < shape.head_dim; d += kGroupSize, tile += kQ8TileBytes) {
    const float scale = lane_kernels().products->half(tile + 512 + 2 * lane);
    float group[kGroupSize];
    for (int64_t i = 0; i < kGroupSize; i += 4)
      for (int64_t j = 0; j < 4; ++j)
        group[i + j] = scale * static_cast<float>(static_cast<int>(tile[16 * i + 4 * lane + j]) - 128);
    key = std::copy_n(group, std::min(kGroupSize, shape.head_dim - d), key);
  }
}

void load_value(const KvShape& shape, const uint8_t* cache, int64_t head, int64_t position, float* value) {
  const int64_t place = position % kCacheBlock;
  const uint8_t* tile = cache + shape.values_of(head) + position / kCacheBlock * kQ8TileBytes;
  const float scale = reinterpret_cast<const float*>(cache + shape.scales_of(head))[position];
  for (int64_t d = 0; d < shape.head_dim; d += kTileRows, tile += shape.blocks() * kQ8TileBytes) {
    const uint8_t* const line = tile + 64 * (place / 4) + place % 4;
    float some[kTileRows];
    for (int64_t i = 0; i < kTileRows; ++i) some[i] = scale * static_cast<float>(static_cast<int>(line[4 * i]) - 128);
    value = std::copy_n(some, std::min(kTileRows, shape.head_dim - d), value);
  }
}

void prefetch_key(const KvShape& shape, int64_t position, const uint8_t* cache) {
  const int64_t bytes = shape.key_groups() * kQ8TileBytes;
  for (int64_t head = 0; head < shape.kv_heads; ++head) {
    const uint8_t* const tile = cache + shape.keys_of(head) + position / kTileRows * bytes;
    for (int64_t line = 0; line < bytes; line += 64) __builtin_prefetch(tile + line, 1);
  }
}

void prefetch_value(const KvShape& shape, int64_t position, const uint8_t* cache) {
  for (int64_t head = 0; head < shape.kv_heads; ++head) {
    const uint8_t* group = cache + shape.values_of(head) + position / kCacheBlock * kQ8TileBytes;
    for (int64_t tile = 0; tile < shape.value_tiles(); ++tile, group += shape.blocks() * kQ8TileBytes)
      __builtin_prefetch(group + position % kCacheBlock / 4 * 64, 1);
    __builtin_prefetch(cache + shape.scales_of(head) + position * static_cast<int64_t>(sizeof(float)), 1);
  }
}

void tree_attention(const TreeAttention& whole) {
  const TreeAttention args = without_skipped(whole);
  thread_local VisibleRows seen_by_this_thread;
  VisibleRows& seen = seen_by_this_thread;
  seen.fill(args.visible, args.rows, args.visible_stride);
  const LaneKernels& kernels = lane_kernels();
  const int64_t kv_heads = args.cache.kv_heads, threads = team_limit();
  int64_t block = kMostRows;  // rows that share reads of keys and values
  const int64_t scores = args.query_heads / kv_heads * (args.cache_length + args.rows);  // of one row
  while (block > 1 && (block * scores > kMostScores || kv_heads * ((args.rows + block - 1) / block) < 2 * threads))
    block /= 2;
  const int64_t blocks = (args.rows + block - 1) / block, tasks = blocks * kv_heads;
  const int64_t stride = static_cast<int64_t>(AttentionBuffers::at(args, std::min(block, args.rows), nullptr).bytes);
  Scratch scratch(static_cast<size_t>(threads * stride));
  uint8_t* const all_buffers = scratch.take<uint8_t>(threads * stride);

  const auto run_tasks = [=, &kernels, list = seen.list.data(), starts = seen.starts.data()](int64_t begin, int64_t end,
                                                                                             int thread) {
    for (int64_t task = begin; task < end; ++task) {
      const int64_t first = task % blocks * block, rows = std::min(block, args.rows - first);
      kernels.attend(args, {first, rows, task / blocks, list, starts + first}, all_buffers + thread * stride);
    }
  };

  const int64_t positions = args.cache_length * args.rows + static_cast<int64_t>(seen.list.size());
  if (2 * positions * args.query_heads * args.cache.head_dim < kSerialAttention)
    run_tasks(0, tasks, 0);
  else
    share_out(tasks, even_chunk(tasks), run_tasks);
}

}  // namespace streamfuse
