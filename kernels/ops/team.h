// The threads of this library: one team per process that shares out the chunks of one operator at a time.
//
// Every thread begins with neighbouring chunks of its own, because memory is read fastest as one long stream, and then
// takes chunks that others have left, from the end. A worker joins a job when it gets to it, and the caller never waits
// for one that has not begun: a worker that the system has put aside costs its share of the work and at most the chunk
// it was in. Between jobs workers spin for a moment, since the next operator is microseconds away, and then sleep, so
// an idle app burns nothing. Results never depend on who computed a chunk.
#pragma once

#include <cstdint>

namespace streamfuse {

constexpr int kMostThreads = 64;

// Makes sure that `threads` threads (the caller is one of them) can work; 0 chooses for this machine. Returns the
// number. Throws std::bad_alloc or std::system_error where the system gives no thread.
int reserve_team(int threads);

// How many threads the calling thread's jobs may use: a session sets the number of its program.
void limit_team(int threads);
int team_limit();

// Wakes sleeping workers ahead of the first job of a pass.
void rouse_team();

using TeamJob = void (*)(const void* context, int64_t begin, int64_t end, int thread);

// Calls job(context, begin, end, thread) over chunks of [0, units) and returns when all are done. `thread` lies below
// team_limit() and is used by one thread at a time. A team that another caller is using, or a single chunk, leaves all
// of the work to the calling thread.
void run_team(int64_t units, int64_t chunk, TeamJob job, const void* context);

// How long the calling thread has waited at the ends of its jobs for the others, since it last asked.
double take_waited_ms();

template <typename Body>
void share_out(int64_t units, int64_t chunk, const Body& body) {
  run_team(
      units, chunk,
      [](const void* context, int64_t begin, int64_t end, int thread) {
        (*static_cast<const Body*>(context))(begin, end, thread);
      },
      &body);
}

// Chunks that are small enough to even out the threads' pace and large enough to be worth claiming.
inline int64_t even_chunk(int64_t units) {
  const int64_t chunk = units / (int64_t{6} * team_limit());
  return chunk < 1 ? 1 : chunk;
}

}  // namespace streamfuse
