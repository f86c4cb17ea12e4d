#include "rounding.h"

#include "team.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

#if defined(__x86_64__)
#include <immintrin.h>
#endif
#if defined(__unix__) || defined(__APPLE__)
#include <pthread.h>
#endif
#if defined(__ANDROID__)
#include <sys/resource.h>
#endif

#include "cache_line.h"
#include "cores.h"
#include "float_state.h"

namespace streamfuse {
namespace {

using Clock = std::chrono::steady_clock;

// The type of the system's native wait; for other types, libc++ uses a table that is shared by the whole process.
#if defined(__linux__)
using WaitWord = int32_t;
#else
using WaitWord = int64_t;
#endif

// Long enough for the loop's own work between two passes. For a caller that takes longer per token (it draws, or waits
// for a user), spinning would be wasted in every pass, and waking takes 50 us at most.
constexpr Clock::duration kWorkerSpin = std::chrono::microseconds(400);
constexpr auto kCallerSpin = std::chrono::microseconds(40);  // a chunk takes less, unless its worker was preempted
constexpr int kPausesPerLook = 64;                           // pauses between checks of the clock
constexpr int64_t kMostChunks = 0xfff;
constexpr uint64_t kNames = 0xff'ffff'ffff;  // job numbers wrap around after this many

inline void pause() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#else
  std::this_thread::yield();
#endif
}

// Spins until `ready` holds and returns true; returns false after `timeout`.
template <typename Ready>
bool spin(Ready ready, Clock::duration timeout) {
  if (timeout == Clock::duration::zero()) return ready();
  const Clock::time_point start = Clock::now();
  for (;;) {
    for (int i = 0; i < kPausesPerLook; ++i) {
      if (ready()) return true;
      pause();
    }
    if (Clock::now() - start > timeout) return false;
  }
}

// A job packed into one word: its number, its chunks, and how many threads may take them. With no threads it is not a
// job but the end of a pass: workers then spin if it has chunks, otherwise they sleep.
struct Call {
  uint64_t name;
  uint32_t chunks;
  uint32_t threads;

  uint64_t packed() const { return name << 24 | uint64_t{chunks} << 12 | threads; }
  static Call of(uint64_t word) {
    return {word >> 24, static_cast<uint32_t>(word >> 12 & kMostChunks), static_cast<uint32_t>(word & 0xfff)};
  }
  uint32_t begin_of(uint32_t share) const { return chunks * share / threads; }
};

// The unclaimed chunks of the range that one thread starts with. The word contains the job's number, so a claim by a
// thread that is still at an older job fails. A word of an older job means that nothing has been claimed yet, so a
// thread that only uses its own range shares no memory with others.
class Share {
 public:
  // Claims the first unclaimed chunk, or the last one; -1 if there is none. `calls` is the pool's current job.
  int64_t claim(const Call& call, uint32_t index, bool first, const std::atomic<uint64_t>& calls) {
    const uint32_t whole_begin = call.begin_of(index), whole_end = call.begin_of(index + 1);
    if (whole_begin == whole_end) return -1;
    const uint64_t name = call.name & kNames;
    uint64_t word = word_.load(std::memory_order_acquire);
    for (;;) {
      uint32_t begin = static_cast<uint32_t>(word >> 12 & kMostChunks), end = static_cast<uint32_t>(word & kMostChunks);
      if (word >> 24 != name) {
        // The word is of an older job, unless this thread itself is late: it is never newer than the current job. All
        // chunks of a finished job were claimed, so a late thread's exchange fails.
        if (calls.load(std::memory_order_acquire) >> 24 != name) return -1;
        begin = whole_begin;
        end = whole_end;
      }
      if (begin >= end) return -1;
      const uint64_t rest = first ? pack(name, begin + 1, end) : pack(name, begin, end - 1);
      if (word_.compare_exchange_weak(word, rest, std::memory_order_acq_rel)) return first ? begin : end - 1;
    }
  }

 private:
  static uint64_t pack(uint64_t name, uint32_t begin, uint32_t end) { return name << 24 | uint64_t{begin} << 12 | end; }

  alignas(kCacheLine) std::atomic<uint64_t> word_{0};
};

thread_local Clock::duration waited_by_this_thread{};

class Team {
 public:
  // Never destroyed, since workers may still access it while the process exits. After a fork, the child abandons its
  // parent's pool, whose lock might never be released there.
  static Team& instance() {
    Team* team = of_process_.load(std::memory_order_acquire);
    return team != nullptr ? *team : *make();
  }

  int reserve(int threads) {
    threads = team_size(threads);
    const std::lock_guard<std::mutex> guard(lock_);
    start(threads);
    return threads;
  }

  void begin_pass(int limit) {
    if (!lock_.try_lock()) return;
    const std::lock_guard<std::mutex> guard(lock_, std::adopt_lock);
    soon_ = Clock::now() - passed_ < kWorkerSpin;
    try {
      start(limit);  // after a fork
    } catch (const std::exception&) {
      // No new threads: the caller runs the pass with those that exist.
    }
    wake(limit);
  }

  void end_pass(bool text_ends) {
    if (!lock_.try_lock()) return;
    const std::lock_guard<std::mutex> guard(lock_, std::adopt_lock);
    passed_ = Clock::now();
    call_word_.store(Call{name_, soon_ && !text_ends ? 1u : 0u, 0}.packed(), std::memory_order_release);
  }

  void run(int64_t units, int64_t chunk, const TeamJob& job, int limit) {
    chunk = std::max(chunk, (units + kMostChunks - 1) / kMostChunks);
    const int64_t chunks = (units + chunk - 1) / chunk;
    if (chunks < 2 || limit < 2 || !lock_.try_lock()) {
      if (units <= 0) return;
      if (job.first != nullptr) job.first(job.context, 0, 0);
      return job.run(job.context, 0, units, 0);
    }
    const std::lock_guard<std::mutex> guard(lock_, std::adopt_lock);
    // Every chunk of the previous job is done, so late workers find none, and the description may change.
    name_ = (name_ + 1) & kNames;
    const Call call = {name_, static_cast<uint32_t>(chunks), static_cast<uint32_t>(limit)};
    job_ = {job, units, chunk};
    call_word_.store(call.packed(), std::memory_order_release);
    wake(limit);
    reported_ += call.chunks - take_chunks(call, 0);  // the workers' total once this job is done
    if (done() != reported_) {
      const Clock::time_point start = Clock::now();
      wait_for_reports();
      waited_by_this_thread += Clock::now() - start;
    }
  }

 private:
  struct Description {
    TeamJob job;
    int64_t units, chunk;
  };

  static Team* make() {
#if defined(__unix__) || defined(__APPLE__)
    static const int watches = pthread_atfork(nullptr, nullptr, [] { of_process_.store(nullptr); });
    (void)watches;
#endif
    Team* const team = new Team;
    Team* other = nullptr;
    if (of_process_.compare_exchange_strong(other, team)) return team;
    delete team;
    return other;
  }

  void start(int threads) {
    for (; workers_ < threads - 1; ++workers_)
      std::thread([this, index = static_cast<uint32_t>(workers_ + 1)] { work(index); }).detach();
  }

  // May miss a worker that is just going to sleep; the job is then done without it.
  void wake(int limit) {
    for (int i = 1; i < limit; ++i)
      if (asleep_[i].load(std::memory_order_relaxed) != 0 && asleep_[i].exchange(0) != 0) asleep_[i].notify_one();
  }

  uint32_t done() const { return static_cast<uint32_t>(done_.load(std::memory_order_acquire)); }

  void wait_for_reports() {
    const auto all = [&] { return done() == reported_; };
    while (!spin(all, kCallerSpin)) {
      // Sleeping gives the core to the system, which can run a preempted worker on it.
      caller_sleeps_.store(true);
      for (WaitWord seen; static_cast<uint32_t>(seen = done_.load()) != reported_;) done_.wait(seen);
      caller_sleeps_.store(false);
    }
  }

  // First its own chunks in order, so that it reads the weights sequentially, then those of the others from their ends.
  // A worker reports once per range, since each report moves the counter's cache line. Returns the number of chunks.
  uint32_t take_chunks(const Call& call, uint32_t index) {
    uint32_t mine = 0;
    bool begins = true;
    for (uint32_t i = 0; i < call.threads; ++i) {
      const uint32_t share = (index + i) % call.threads, before = mine;
      for (int64_t chunk; (chunk = shares_[share].claim(call, share, i == 0, call_word_)) >= 0; ++mine) {
        const int64_t begin = chunk * job_.chunk;  // the description cannot change before a claimed chunk is done
        if (std::exchange(begins, false) && job_.job.first != nullptr)
          job_.job.first(job_.job.context, begin, static_cast<int>(index));
        job_.job.run(job_.job.context, begin, std::min(begin + job_.chunk, job_.units), static_cast<int>(index));
      }
      if (index != 0 && mine != before) {
        done_.fetch_add(static_cast<WaitWord>(mine - before));
        if (caller_sleeps_.load()) done_.notify_all();
      }
    }
    return mine;
  }

  void work(uint32_t index) {
    const DefaultFloats as_everywhere;
#if defined(__APPLE__)
    // A new thread does not inherit the caller's QoS class, and without one it runs on the slow cores.
    (void)pthread_set_qos_class_self_np(QOS_CLASS_USER_INITIATED, 0);
#elif defined(__ANDROID__)
    // A new thread inherits the priority of its creator. If that is a background thread which loads a model, every
    // answer would wait for workers that hardly run. An app may raise its own threads.
    if (getpriority(PRIO_PROCESS, 0) > 0) (void)setpriority(PRIO_PROCESS, 0, 0);
#endif
    Clock::duration timeout = kWorkerSpin;
    for (uint64_t last = 0;;) {
      const auto is_new = [&] { return call_word_.load() != last; };
      if (!spin(is_new, timeout)) {
        asleep_[index].store(1);
        if (!is_new()) asleep_[index].wait(1);
        asleep_[index].store(0);
        timeout = kWorkerSpin;
        continue;
      }
      last = call_word_.load(std::memory_order_acquire);
      const Call call = Call::of(last);
      const bool stays = call.threads == 0 ? call.chunks != 0 : index < call.threads;
      if (index < call.threads) take_chunks(call, index);
      timeout = stays ? kWorkerSpin : Clock::duration::zero();
    }
  }

  // Used by the caller only.
  std::mutex lock_;
  int workers_ = 0;
  uint64_t name_ = 0;
  uint32_t reported_ = 0;
  Clock::time_point passed_{};  // when the last pass ended
  bool soon_ = true;            // the last pass began within kWorkerSpin after the previous one

  Share shares_[kMostThreads];
  alignas(kCacheLine) std::atomic<uint64_t> call_word_{
      0};  // next to the description, so that one cache line has the job
  Description job_{};
  alignas(kCacheLine) std::atomic<WaitWord> done_{0};  // chunks that workers have reported, over all jobs
  std::atomic<bool> caller_sleeps_{false};
  alignas(kCacheLine) std::atomic<WaitWord> asleep_[kMostThreads] = {};  // per worker: 1 while it sleeps

  static std::atomic<Team*> of_process_;
};

std::atomic<Team*> Team::of_process_{nullptr};

thread_local int limit_of_this_thread = 1;

}  // namespace

int team_size(int threads) { return std::min(threads <= 0 ? default_threads() : threads, kMostThreads); }

int reserve_team(int threads) { return Team::instance().reserve(threads); }

void limit_team(int threads) { limit_of_this_thread = std::clamp(threads, 1, kMostThreads); }

int team_limit() { return limit_of_this_thread; }

TeamPass::TeamPass(int threads) {
  limit_team(threads);
  if (threads > 1) Team::instance().begin_pass(threads);
}

TeamPass::~TeamPass() {
  if (limit_of_this_thread > 1) Team::instance().end_pass(false);
}

void park_workers() { Team::instance().end_pass(true); }

void run_team(int64_t units, int64_t chunk, const TeamJob& job) {
  Team::instance().run(units, chunk, job, limit_of_this_thread);
}

double take_waited_ms() {
  const std::chrono::duration<double, std::milli> waited = std::exchange(waited_by_this_thread, Clock::duration{});
  return waited.count();
}

}  // namespace streamfuse
