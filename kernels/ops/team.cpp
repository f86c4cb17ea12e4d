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
constexpr int64_t kMostChunks = 0xffff;

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

// The chunks of a job that nobody has claimed yet of those that one thread begins with. The upper half of the word
// names the job, so a claim by a thread that is still at an older job fails.
class Share {
 public:
  void open(uint32_t name, uint32_t begin, uint32_t end) { word_.store(pack(name, begin, end)); }

  // The first chunk that is left, or the last one; -1 where nothing is.
  int64_t claim(uint32_t name, bool first) {
    uint64_t word = word_.load(std::memory_order_acquire);
    for (;;) {
      const uint32_t begin = static_cast<uint16_t>(word >> 16), end = static_cast<uint16_t>(word);
      if (static_cast<uint32_t>(word >> 32) != name || begin >= end) return -1;
      const uint64_t rest = first ? pack(name, begin + 1, end) : pack(name, begin, end - 1);
      if (word_.compare_exchange_weak(word, rest, std::memory_order_acq_rel)) return first ? begin : end - 1;
    }
  }

 private:
  static uint64_t pack(uint32_t name, uint32_t begin, uint32_t end) {
    return uint64_t{name} << 32 | uint64_t{begin} << 16 | end;
  }

  alignas(64) std::atomic<uint64_t> word_{0};
};

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
    chunk = std::max(chunk, (units + kMostChunks - 1) / kMostChunks);
    const int64_t chunks = (units + chunk - 1) / chunk;
    if (chunks < 2 || limit < 2 || !lock_.try_lock()) {
      if (units > 0) job(context, 0, units, 0);
      return;
    }
    const std::lock_guard<std::mutex> guard(lock_, std::adopt_lock);
    // Every chunk of the job before is claimed, so a late worker finds none and the description may change.
    const uint32_t name = job_name_.load(std::memory_order_relaxed) + 1, total = static_cast<uint32_t>(chunks);
    job_ = {job, context, units, chunk};
    limit_.store(limit, std::memory_order_relaxed);
    done_.store(0, std::memory_order_relaxed);
    for (uint32_t i = 0, all = static_cast<uint32_t>(limit); i < all; ++i)
      shares_[i].open(name, total * i / all, total * (i + 1) / all);
    job_name_.store(name);
    rouse();

    take_chunks(name, 0, limit);
    if (done_.load(std::memory_order_acquire) != total) {
      const Clock::time_point start = Clock::now();
      wait_for(total);
      waited_by_this_thread += Clock::now() - start;
    }
  }

 private:
  struct Job {
    TeamJob run;
    const void* context;
    int64_t units, chunk;
  };

  void wait_for(uint32_t total) {
    while (!spin([&] { return done_.load(std::memory_order_acquire) == total; }, kCallerSpin)) {
      // Giving the core away lets the system run the worker there that it has put aside.
      caller_sleeps_.store(true);
      for (uint32_t seen; (seen = done_.load()) != total;) done_.wait(seen);
      caller_sleeps_.store(false);
    }
  }

  // Its own chunks in order, so that it reads the weights as one stream, then the others' from their ends.
  void take_chunks(uint32_t name, int index, int limit) {
    for (int i = 0; i < limit; ++i) {
      Share& share = shares_[(index + i) % limit];
      for (int64_t mine; (mine = share.claim(name, i == 0)) >= 0;) {
        const int64_t begin = mine * job_.chunk;  // which stays as it is while a claimed chunk is not done
        job_.run(job_.context, begin, std::min(begin + job_.chunk, job_.units), index);
        done_.fetch_add(1);
        if (caller_sleeps_.load()) done_.notify_all();
      }
    }
  }

  void work(int index) {
    for (uint32_t last = 0;;) {
      const auto is_new = [&] { return job_name_.load(std::memory_order_acquire) != last; };
      if (!spin(is_new, kWorkerSpin)) {
        const uint32_t call = call_.load();
        sleepers_.fetch_add(1);
        if (!is_new()) call_.wait(call);
        sleepers_.fetch_sub(1);
        continue;
      }
      last = job_name_.load(std::memory_order_acquire);
      const int limit = limit_.load(std::memory_order_relaxed);
      if (index < limit) take_chunks(last, index, limit);
    }
  }

  std::mutex lock_;
  int workers_ = 0;

  Share shares_[kMostThreads];
  alignas(64) std::atomic<uint32_t> done_{0};
  std::atomic<bool> caller_sleeps_{false};
  alignas(64) std::atomic<uint32_t> call_{0};
  std::atomic<int> sleepers_{0};
  alignas(64) std::atomic<uint32_t> job_name_{0};
  std::atomic<int> limit_{0};
  Job job_{};
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
