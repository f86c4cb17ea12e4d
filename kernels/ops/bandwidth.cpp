#include "bandwidth.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include "lane_kernels.h"
#include "team.h"

namespace streamfuse {
namespace {
constexpr int64_t kBytes = int64_t{128} << 20, kChunk = int64_t{64} << 10, kPage = int64_t{2} << 20;
constexpr int kSweeps = 12;
}  // namespace

double read_bandwidth() {
  using Clock = std::chrono::steady_clock;
  const std::unique_ptr<void, void (*)(void*)> memory(std::aligned_alloc(kPage, kBytes), std::free);
  if (memory == nullptr) throw std::bad_alloc();
#if defined(__linux__)
  (void)madvise(memory.get(), kBytes,
                MADV_HUGEPAGE);  // small pages can halve the speed, and a mapped file has large ones
#endif
  std::memset(memory.get(), 1, kBytes);  // pages that were never written are all one page of zeros
  const auto* block = static_cast<const uint8_t*>(memory.get());
  std::atomic<uint64_t> total{0};
  double best = 0;
  for (int sweep = 0; sweep < kSweeps; ++sweep) {
    const auto start = Clock::now();
    share_out(kBytes / kChunk, 4, [&](int64_t begin, int64_t end, int) {
      const size_t bytes = static_cast<size_t>((end - begin) * kChunk);
      total.fetch_xor(lane_kernels().products->read(block + begin * kChunk, bytes), std::memory_order_relaxed);
    });
    best = std::max(best, kBytes / 1e9 / std::chrono::duration<double>(Clock::now() - start).count());
  }
  return best;
}

}  // namespace streamfuse
