// The threads of this library: one team per process that shares out the chunks of one operator at a time.
//
// Every thread begins with neighbouring chunks of its own, because memory is read fastest as one long stream, and then
// takes chunks that others have left, from the end. A worker joins a job when it gets to it, and the caller never waits
// for one that has not begun: a worker that the system has put aside costs its share of the work and at most the chunk
// it was in. Inside a pass workers spin for a moment between jobs, since the next operator is microseconds away; after
// a pass they do so only where the last pass came soon, and after a text they sleep at once, so an idle app burns
// nothing. A worker that a job has no share for sleeps. Results never depend on who computed a chunk.
//
// A forked process begins with a team of its own: of the threads only the one that forked lives on there.
//
// Two cores may lie far apart: a line that goes from one cache to the other takes 50 ns, or 300 where they do not share
// a third one. So a job is one line from the caller to its workers, and one count per worker back.
#pragma once

#include <cstdint>

#include "float_state.h"

namespace streamfuse {

constexpr int kMostThreads = 64;

// Makes sure that `threads` threads (the caller is one of them) can work; 0 chooses for this machine (cores.h). Returns
// the number. Throws std::bad_alloc or std::system_error where the system gives no thread.
int reserve_team(int threads);

// How many threads the calling thread's jobs may use.
void limit_team(int threads);
int team_limit();

// A pass of the calling thread on so many threads, computed with default floats. Its beginning wakes the workers ahead
// of the first job, its end lets them go; neither waits.
class TeamPass {
 public:
  explicit TeamPass(int threads);
  ~TeamPass();
  TeamPass(const TeamPass&) = delete;
  TeamPass& operator=(const TeamPass&) = delete;

 private:
  DefaultFloats floats_;
};

// No pass follows soon: the workers sleep.
void rest_team();

// One job: `run` over chunks of [0, units), with `context` handed on. Where `first` is not null each thread calls it
// once, before its first chunk.
struct TeamJob {
  void (*run)(const void* context, int64_t begin, int64_t end, int thread);
  void (*first)(const void* context, int64_t begin, int thread);
  const void* context;
};

// Returns when all chunks are done. `thread` lies below team_limit() and is used by one thread at a time. A team that
// another caller is using, or a single chunk, leaves all of the work to the calling thread. Nothing may throw.
void run_team(int64_t units, int64_t chunk, const TeamJob& job);

// How long the calling thread has waited at the ends of its jobs for the others, since it last asked.
double take_waited_ms();

// What lies in `body` is fetched by every worker from the calling thread's cache, which may take a third of a
// microsecond a step: let it hold the arguments themselves, not references to them.
template <typename Body>
void share_out(int64_t units, int64_t chunk, const Body& body) {
  const auto run = [](const void* context, int64_t begin, int64_t end, int thread) {
    (*static_cast<const Body*>(context))(begin, end, thread);
  };
  run_team(units, chunk, {run, nullptr, &body});
}

// The same where each thread begins with `first(begin, thread)`.
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

// Chunks that are small enough to even out the threads' pace and large enough to be worth claiming.
inline int64_t even_chunk(int64_t units) {
  const int64_t chunk = units / (int64_t{24} * team_limit());
  return chunk < 1 ? 1 : chunk;
}

}  // namespace streamfuse
