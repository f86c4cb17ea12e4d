// The thread pool of this library: one per process. It distributes the chunks of one operator at a time.
//
// Every thread starts with its own range of consecutive chunks, because memory is read fastest sequentially, and then
// steals chunks of other threads, from the end. A worker joins a job when it is scheduled, and the caller never waits
// for a worker that has not started: a preempted worker costs its share of the work and at most the chunk that it was
// computing. During a pass, workers spin for a moment between jobs, since the next operator follows within
// microseconds. After a pass they spin only if passes follow each other quickly, and after generation they sleep at
// once, so an idle app uses no CPU. Workers that have no share of a job sleep. Results do not depend on which thread
// computes a chunk.
//
// A forked process starts with a new pool, since only the forking thread exists in it.
//
// Moving a cache line from one core to another takes 50 ns, or 300 ns if they do not share an L3 cache. So a job is one
// cache line from the caller to its workers, and one counter per worker back.
#pragma once

#include <cstdint>

#include "float_state.h"

namespace streamfuse {

constexpr int kMostThreads = 64;

// The pool size for a requested number of threads: 0 means the default (cores.h); at most kMostThreads.
int team_size(int threads);

// Makes sure that the pool has team_size(threads) threads, including the caller. Returns the number. Throws
// std::bad_alloc or std::system_error if threads cannot be created.
int reserve_team(int threads);

// The maximum number of threads for jobs of the calling thread.
void limit_team(int threads);
int team_limit();

// A pass of the calling thread on this many threads, with the default floating-point state. Its constructor wakes the
// workers before the first job, its destructor releases them; neither waits.
class TeamPass {
 public:
  explicit TeamPass(int threads);
  ~TeamPass();
  TeamPass(const TeamPass&) = delete;
  TeamPass& operator=(const TeamPass&) = delete;

 private:
  DefaultFloats floats_;
};

// Called when no pass follows soon: the workers sleep.
void park_workers();

// One job: `run` over chunks of [0, units), with `context` passed to it. If `first` is not null, each thread calls it
// once before its first chunk.
struct TeamJob {
  void (*run)(const void* context, int64_t begin, int64_t end, int thread);
  void (*first)(const void* context, int64_t begin, int thread);
  const void* context;
};

// Runs a job and returns when all chunks are done. `thread` is below team_limit() and is used by one thread at a time.
// If another caller is using the pool, or there is only one chunk, the calling thread does all the work. Nothing may
// throw.
void run_team(int64_t units, int64_t chunk, const TeamJob& job);

// Milliseconds that the calling thread has waited for other threads at the ends of its jobs, since the last call.
double take_waited_ms();

// Every worker fetches `body` from the calling thread's cache, which may take a third of a microsecond per indirection,
// so it should contain the arguments themselves, not references to them.
template <typename Body>
void share_out(int64_t units, int64_t chunk, const Body& body) {
  const auto run = [](const void* context, int64_t begin, int64_t end, int thread) {
    (*static_cast<const Body*>(context))(begin, end, thread);
  };
  run_team(units, chunk, {run, nullptr, &body});
}

// The same, but each thread first calls `first(begin, thread)`.
template <typename First, typename Body>
void share_out(int64_t units, int64_t chunk, const First& first, const Body& body) {
  struct Parts {
    First first;
    Body body;
  } const parts = {first, body};
  const auto run_first = [](const void* context, int64_t begin, int thread) {
    static_cast<const Parts*>(context)->first(begin, thread);
  };
  const auto run = [](const void* context, int64_t begin, int64_t end, int thread) {
    static_cast<const Parts*>(context)->body(begin, end, thread);
  };
  run_team(units, chunk, {run, run_first, &parts});
}

// Chunks that are small enough to balance the load and large enough to be worth claiming.
inline int64_t even_chunk(int64_t units) {
  const int64_t chunk = units / (int64_t{24} * team_limit());
  return chunk < 1 ? 1 : chunk;
}

}  // namespace streamfuse
