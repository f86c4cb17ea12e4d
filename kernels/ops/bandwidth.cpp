#include "rounding.h"

#include "bandwidth.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <thread>

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include "cache_line.h"
#include "lane_kernels.h"
#include "team.h"

namespace streamfuse {
namespace {
constexpr int64_t kChunk = int64_t{64} << 10, kPage = int64_t{2} << 20;
constexpr int kSweeps = 12;
constexpr uint32_t kTurns = 1000, kRounds = 20;
constexpr auto kTimeout =
    std::chrono::milliseconds(200);  // time limit for the system to move a new thread to its own core
}  // namespace

double read_bandwidth(int64_t bytes) {
  const int64_t chunks = std::max(int64_t{1}, bytes / kChunk), size = chunks * kChunk;
  using Clock = std::chrono::steady_clock;
  void* pages = nullptr;
  if (posix_memalign(&pages, kPage, size) != 0) throw std::bad_alloc();
  const std::unique_ptr<void, void (*)(void*)> memory(pages, std::free);
#if defined(__linux__)
  // Small pages can halve the bandwidth, and a mapped model has large ones.
  (void)madvise(memory.get(), size, MADV_HUGEPAGE);
#endif
  std::memset(memory.get(), 1, size);  // pages that were never written all map to the same zero page
  const auto* block = static_cast<const uint8_t*>(memory.get());
  std::atomic<uint64_t> total{0};
  double best = 0;
  for (int sweep = 0; sweep < kSweeps; ++sweep) {
    const auto start = Clock::now();
    share_out(chunks, 4, [&](int64_t begin, int64_t end, int) {
      const size_t part = static_cast<size_t>((end - begin) * kChunk);
      total.fetch_xor(lane_kernels().products->read(block + begin * kChunk, part), std::memory_order_relaxed);
    });
    best = std::max(best, size / 1e9 / std::chrono::duration<double>(Clock::now() - start).count());
  }
  return best;
}

double core_distance_ns() {
  using Clock = std::chrono::steady_clock;
  struct alignas(kCacheLine) Line {
    std::atomic<uint32_t> turn{0};
  } there, back;
  const auto deadline = Clock::now() + kTimeout;
  const auto wait_for = [&](const Line& line, uint32_t turn) {
    for (uint32_t looks = 0; line.turn.load(std::memory_order_acquire) < turn; ++looks)
      if (looks % 1024 == 1023 && Clock::now() > deadline) return false;
    return true;
  };
  std::thread other([&] {
    for (uint32_t turn = 1; turn <= kTurns * kRounds && wait_for(there, turn); ++turn)
      back.turn.store(turn, std::memory_order_release);
  });
  double best = 0;
  bool answered = true;
  for (uint32_t round = 0; round < kRounds && answered; ++round) {
    const auto start = Clock::now();
    for (uint32_t turn = round * kTurns + 1; turn <= (round + 1) * kTurns && answered; ++turn) {
      there.turn.store(turn, std::memory_order_release);
      answered = wait_for(back, turn);
    }
    const double ns = std::chrono::duration<double, std::nano>(Clock::now() - start).count() / (2 * kTurns);
    if (answered) best = best == 0 ? ns : std::min(best, ns);
  }
  there.turn.store(kTurns * kRounds);  // lets the other thread finish in any state
  other.join();
  return best;
}

}  // namespace streamfuse
