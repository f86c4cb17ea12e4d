#include "team.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <mutex>
#include <thread>
#include <utility>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace streamfuse {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kWorkerSpin = std::chrono::microseconds(400);  // covers the loop's own work between two passes
constexpr auto kCallerSpin = std::chrono::microseconds(40);   // a chunk takes less, unless its worker was put aside
constexpr int kPausesPerLook = 64;                            // at the clock
constexpr uint32_t kClosed = 0xffffffffu;

inline void pause() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#else
  std::this_thread::yield();
#endif
}

// True once `ready` holds, false after `patience`.
template <typename Ready>
bool spin(Ready ready, Clock::duration patience) {
  const Clock::time_point start = Clock::now();
  for (;;) {
    for (int i = 0; i < kPausesPerLook; ++i) {
      if (ready()) return true;
      pause();
    }
    if (Clock::now() - start > patience) return false;
  }
}

thread_local Clock::duration waited_by_this_thread{};

class Team {
 public:
  // Never destroyed: workers may still look at it while the process ends.
  static Team& instance() {
    static Team* team = new Team;
    return *team;
  }

  int reserve(int threads) {
    if (threads <= 0) threads = std::clamp(static_cast<int>(std::thread::hardware_concurrency()), 1, 4);
    threads = std::min(threads, kMostThreads);
    const std::lock_guard<std::mutex> guard(lock_);
    for (; workers_ < threads - 1; ++workers_) std::thread([this, index = workers_ + 1] { work(index); }).detach();
    return threads;
  }

  void rouse() {
    if (sleepers_.load() > 0) call_.fetch_add(1), call_.notify_all();
  }

  void run(int64_t units, int64_t chunk, TeamJob job, const void* context, int limit) {
    const int64_t chunks = (units + chunk - 1) / chunk;
    if (chunks < 2 || limit < 2 || chunks >= kClosed || !lock_.try_lock()) {
      if (units > 0) job(context, 0, units, 0);
      return;
    }
    const std::lock_guard<std::mutex> guard(lock_, std::adopt_lock);
    // The ticket's upper half names the job, the lower half the next chunk. While it is closed, a late worker's claim
    // fails, so the description may change under its eyes.
    const uint32_t name = static_cast<uint32_t>(ticket_.load() >> 32) + 1;
    ticket_.store(uint64_t{name} << 32 | kClosed);
    job_.store(job, std::memory_order_relaxed);
    context_.store(context, std::memory_order_relaxed);
    units_.store(units, std::memory_order_relaxed);
    chunk_.store(chunk, std::memory_order_relaxed);
    limit_.store(limit, std::memory_order_relaxed);
    done_.store(0, std::memory_order_relaxed);
    ticket_.store(uint64_t{name} << 32);
    rouse();

    const uint32_t total = static_cast<uint32_t>(chunks);
    for (uint32_t mine; (mine = claim(name, total)) != kClosed;) {
      const int64_t begin = mine * chunk;
      job(context, begin, std::min(begin + chunk, units), 0);
      done_.fetch_add(1, std::memory_order_release);
    }
    if (done_.load(std::memory_order_acquire) != total) {
      const Clock::time_point start = Clock::now();
      wait_for(total);
      waited_by_this_thread += Clock::now() - start;
    }
    ticket_.store(uint64_t{name} << 32 | kClosed);
  }

 private:
  void wait_for(uint32_t total) {
    while (!spin([&] { return done_.load(std::memory_order_acquire) == total; }, kCallerSpin)) {
      // Giving the core away lets the system run the worker there that it has put aside.
      caller_sleeps_.store(true);
      for (uint32_t seen; (seen = done_.load()) != total;) done_.wait(seen);
      caller_sleeps_.store(false);
    }
  }

  // The next chunk of this job, kClosed when there is none.
  uint32_t claim(uint32_t name, uint32_t total) {
    uint64_t ticket = ticket_.load(std::memory_order_acquire);
    for (;;) {
      const uint32_t next = static_cast<uint32_t>(ticket);
      if (static_cast<uint32_t>(ticket >> 32) != name || next >= total) return kClosed;
      if (ticket_.compare_exchange_weak(ticket, ticket + 1, std::memory_order_acq_rel)) return next;
    }
  }

  void work(int index) {
    uint32_t last = 0;
    for (;;) {
      const auto is_open = [&] {
        const uint64_t ticket = ticket_.load(std::memory_order_acquire);
        return static_cast<uint32_t>(ticket >> 32) != last && static_cast<uint32_t>(ticket) != kClosed;
      };
      if (!spin(is_open, kWorkerSpin)) {
        const uint32_t call = call_.load();
        sleepers_.fetch_add(1);
        if (!is_open()) call_.wait(call);
        sleepers_.fetch_sub(1);
        continue;
      }
      const uint64_t ticket = ticket_.load(std::memory_order_acquire);
      if (static_cast<uint32_t>(ticket) == kClosed) continue;  // the next job is about to open
      const uint32_t name = last = static_cast<uint32_t>(ticket >> 32);
      const TeamJob job = job_.load(std::memory_order_relaxed);
      const void* const context = context_.load(std::memory_order_relaxed);
      const int64_t units = units_.load(std::memory_order_relaxed), chunk = chunk_.load(std::memory_order_relaxed);
      if (index >= limit_.load(std::memory_order_relaxed) || chunk <= 0) continue;
      const uint32_t total = static_cast<uint32_t>((units + chunk - 1) / chunk);
      for (uint32_t mine; (mine = claim(name, total)) != kClosed;) {
        const int64_t begin = mine * chunk;
        job(context, begin, std::min(begin + chunk, units), index);
        done_.fetch_add(1);
        if (caller_sleeps_.load()) done_.notify_all();
      }
    }
  }

  std::mutex lock_;
  int workers_ = 0;

  alignas(64) std::atomic<uint64_t> ticket_{kClosed};
  alignas(64) std::atomic<uint32_t> done_{0};
  std::atomic<bool> caller_sleeps_{false};
  alignas(64) std::atomic<uint32_t> call_{0};
  std::atomic<int> sleepers_{0};
  alignas(64) std::atomic<TeamJob> job_{nullptr};
  std::atomic<const void*> context_{nullptr};
  std::atomic<int64_t> units_{0}, chunk_{0};
  std::atomic<int> limit_{0};
};

thread_local int limit_of_this_thread = 1;

}  // namespace

int reserve_team(int threads) { return Team::instance().reserve(threads); }

void limit_team(int threads) { limit_of_this_thread = std::clamp(threads, 1, kMostThreads); }

int team_limit() { return limit_of_this_thread; }

void rouse_team() {
  if (limit_of_this_thread > 1) Team::instance().rouse();
}

void run_team(int64_t units, int64_t chunk, TeamJob job, const void* context) {
  Team::instance().run(units, chunk, job, context, limit_of_this_thread);
}

double take_waited_ms() {
  const std::chrono::duration<double, std::milli> waited = std::exchange(waited_by_this_thread, Clock::duration{});
  return waited.count();
}

}  // namespace streamfuse
