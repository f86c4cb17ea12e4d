#include "bandwidth.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>

#include "lane_kernels.h"
#include "scratch.h"
#include "team.h"

namespace streamfuse {
namespace {
constexpr int64_t kBytes = int64_t{256} << 20, kChunk = int64_t{1} << 20;
constexpr int kSweeps = 8;
}  // namespace

double read_bandwidth() {
  using Clock = std::chrono::steady_clock;
  Scratch scratch(kBytes);
  uint8_t* const block = scratch.take<uint8_t>(kBytes);
  std::memset(block, 1, static_cast<size_t>(kBytes));  // pages that were never written are all one page of zeros
  std::atomic<uint64_t> total{0};
  double best = 0;
  for (int sweep = 0; sweep < kSweeps; ++sweep) {
    const auto start = Clock::now();
    share_out(kBytes / kChunk, 2, [&](int64_t begin, int64_t end, int) {
      total.fetch_xor(lane_kernels().products->read(block + begin * kChunk, static_cast<size_t>((end - begin) * kChunk)),
                      std::memory_order_relaxed);
    });
    best = std::max(best, kBytes / 1e9 / std::chrono::duration<double>(Clock::now() - start).count());
  }
  return best;
}

}  // namespace streamfuse
