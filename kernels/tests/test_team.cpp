// Tests of the thread pool: how many threads there are, when they sleep, their floating-point state, and forks.
// Run: test_team. It measures the CPU time of idle workers, so no other program should be running.
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cfenv>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "ops/cores.h"
#include "ops/team.h"

namespace {

using namespace streamfuse;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

int failures = 0;

void expect(bool condition, const char* what, double found = 0.0) {
  if (condition) return;
  std::printf("FAILED: %s (%g)\n", what, found);
  ++failures;
}

// ---- how many ----

// A folder with Linux's processor files, one line of text per core; a core whose line is empty has no such file.
struct Machine {
  std::filesystem::path folder;
  std::vector<int> all;

  Machine(const char* file, const std::vector<std::string>& lines) {
    std::string name = (std::filesystem::temp_directory_path() / "streamfuse-cores-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) std::abort();
    folder = name;
    add(file, lines);
    for (size_t core = 0; core < lines.size(); ++core) all.push_back(static_cast<int>(core));
  }
  ~Machine() { std::filesystem::remove_all(folder); }

  void add(const char* file, const std::vector<std::string>& lines) const {
    for (size_t core = 0; core < lines.size(); ++core) {
      const std::filesystem::path path = folder / std::string("cpu").append(std::to_string(core)) / file;
      std::filesystem::create_directories(path.parent_path());
      if (!lines[core].empty()) std::ofstream(path) << lines[core] << "\n";
    }
  }
};

void big_cores_are_counted() {
  const char *const capacity = "cpu_capacity", *const frequency = "cpufreq/cpuinfo_max_freq";
  const struct {
    const char* name;
    const char* file;
    std::vector<std::string> lines;
    int big;
  } machines[] = {
      {"Snapdragon 8 Gen 3: 2 little, 3 and 2 big, 1 prime",
       frequency,
       {"2265600", "2265600", "3148800", "3148800", "3148800", "2956800", "2956800", "3302400"},
       6},
      {"Pixel 9: 4 little, 3 big, 1 prime",
       frequency,
       {"1950000", "1950000", "1950000", "1950000", "2600000", "2600000", "2600000", "3105000"},
       4},
      {"Pixel 6: big ones of less than half a prime core",
       capacity,
       {"124", "124", "124", "124", "498", "498", "1024", "1024"},
       4},
      {"4 + 4", capacity, {"535", "535", "535", "535", "1024", "1024", "1024", "1024"}, 4},
      {"two kinds, both big", capacity, {"830", "830", "830", "830", "830", "830", "1024", "1024"}, 0},
      {"cores that are favoured a little", frequency, {"4900000", "4900000", "5100000", "5000000"}, 0},
      {"8 equal",
       frequency,
       {"2000000", "2000000", "2000000", "2000000", "2000000", "2000000", "2000000", "2000000"},
       0},
      {"no files", capacity, {"", "", "", ""}, 0},
      {"an offline core of each kind", capacity, {"", "300", "", "1024", "1024"}, 2},
      {"garbage", capacity, {"fast", "-3", "1e99", "nan", "\n\n", "0"}, 0},
      {"garbage beside numbers", capacity, {"300", "??", "1024", "-1"}, 1},
  };
  for (const auto& machine : machines) {
    const Machine made(machine.file, machine.lines);
    const int found = big_cores(made.folder.string(), made.all);
    expect(found == machine.big, machine.name, found);
  }

  const Machine equal_frequencies(frequency, {"2000000", "2000000", "2000000", "2000000"});
  equal_frequencies.add(capacity, {"400", "400", "400", "1024"});
  expect(big_cores(equal_frequencies.folder.string(), {0, 1, 2, 3}) == 1, "capacities count before frequencies");
  expect(big_cores(equal_frequencies.folder.string(), {0, 1, 2}) == 0, "little cores alone have no big one");
  expect(big_cores(equal_frequencies.folder.string(), {2, 3}) == 1, "only allowed cores count");
  expect(big_cores(equal_frequencies.folder.string(), {}) == 0, "no core is allowed");
  expect(big_cores("/nowhere", {0, 1}) == 0, "there is no folder");
  expect(default_threads() >= 1 && default_threads() <= 8, "the default number of threads");
}

// Files below a folder that replaces "/".
struct Root {
  std::string folder;

  explicit Root(const std::vector<std::pair<std::string, std::string>>& files) {
    folder = (std::filesystem::temp_directory_path() / "streamfuse-groups-XXXXXX").string();
    if (mkdtemp(folder.data()) == nullptr) std::abort();
    for (const auto& [name, text] : files) {
      const std::filesystem::path path = folder + "/" + name;
      std::filesystem::create_directories(path.parent_path());
      std::ofstream(path) << text << "\n";
    }
  }
  ~Root() { std::filesystem::remove_all(folder); }
};

void a_groups_limit_is_read() {
  const std::string self = "proc/self/cgroup", top = "sys/fs/cgroup/";
  const struct {
    const char* name;
    std::vector<std::pair<std::string, std::string>> files;
    int cores;
  } roots[] = {
      {"a container of one core", {{self, "0::/"}, {top + "cpu.max", "100000 100000"}}, 1},
      {"two and a half", {{self, "0::/"}, {top + "cpu.max", "250000 100000"}}, 2},
      {"half a core", {{self, "0::/"}, {top + "cpu.max", "50000 100000"}}, 1},
      {"no limit", {{self, "0::/"}, {top + "cpu.max", "max 100000"}}, 0},
      {"a group in a group that has less",
       {{self, "0::/app/part"}, {top + "app/part/cpu.max", "400000 100000"}, {top + "app/cpu.max", "300000 100000"}},
       3},
      {"a path of the machine, seen from a container",
       {{self, "0::/system.slice/docker-1.scope"}, {top + "cpu.max", "200000 100000"}},
       2},
      {"cgroup v1",
       {{self, "12:memory:/\n4:cpu,cpuacct:/docker/1\n1:name=systemd:/"},
        {top + "cpu/docker/1/cpu.cfs_quota_us", "150000"},
        {top + "cpu/docker/1/cpu.cfs_period_us", "50000"}},
       3},
      {"cgroup v1 without a limit",
       {{self, "4:cpuacct,cpu:/"}, {top + "cpu/cpu.cfs_quota_us", "-1"}, {top + "cpu/cpu.cfs_period_us", "100000"}},
       0},
      {"cgroup v1 and v2",
       {{self, "2:cpu:/\n0::/"}, {top + "cpu/cpu.cfs_quota_us", "200000"}, {top + "cpu/cpu.cfs_period_us", "100000"}},
       2},
      {"garbage", {{self, "0::/\n::\n:\nx\n0:cpu"}, {top + "cpu.max", "?? 5"}}, 0},
      {"a period of nothing", {{self, "0::/"}, {top + "cpu.max", "100000 0"}}, 0},
      {"no group", {}, 0},
  };
  for (const auto& root : roots) {
    const Root made(root.files);
    const int found = cores_of_group(made.folder);
    expect(found == root.cores, root.name, found);
    const int threads = default_threads(made.folder);
    expect(root.cores == 0 ? threads == default_threads() : threads <= root.cores, root.name, threads);
  }
}

// ---- jobs ----

// Runs `body(thread)` on `threads` threads at once: each waits in its chunk until all have arrived. A worker that is
// just falling asleep may miss a job, so it is tried again.
template <typename Body>
void on_all(int threads, const Body& body) {
  for (int attempt = 0; attempt < 50; ++attempt) {
    std::atomic<int> came{0};
    std::atomic<bool> late{false};
    share_out(threads, 1, [&](int64_t, int64_t, int thread) {
      ++came;
      const auto timeout = Clock::now() + milliseconds(200);
      while (came < threads && !late) {
        if (Clock::now() > timeout) late = true;
        std::this_thread::yield();
      }
      if (!late) body(thread);
    });
    if (!late) return;
  }
  expect(false, "a worker never came");
}

double seconds_of(pthread_t thread) {
  clockid_t clock;
  timespec time = {};
  if (pthread_getcpuclockid(thread, &clock) == 0) clock_gettime(clock, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

std::vector<pthread_t> workers(int threads) {
  std::vector<pthread_t> found(static_cast<size_t>(threads));
  limit_team(reserve_team(threads));
  on_all(threads, [&](int thread) { found[static_cast<size_t>(thread)] = pthread_self(); });
  return found;
}

void some_pass(int threads) {
  const TeamPass pass(threads);
  for (int job = 0; job < 5; ++job) share_out(8, 1, [](int64_t, int64_t, int) {});
}

// The CPU time of worker `index` in milliseconds, the mean of `times` runs of `body`. A worker also spins while other
// programs keep the caller from its core in the middle of a pass, so this is the first mean below `most`, or the least
// of twenty.
template <typename Body>
double cost_ms(int index, int threads, int times, double most, const Body& body) {
  const pthread_t worker = workers(threads)[static_cast<size_t>(index)];
  double least = INFINITY;
  for (int round = 0; round < 20 && least >= most; ++round) {
    std::this_thread::sleep_for(milliseconds(5));
    const double before = seconds_of(worker);
    for (int i = 0; i < times; ++i) body();
    least = std::min(least, 1e3 * (seconds_of(worker) - before) / times);
  }
  return least;
}

// ---- when they sleep ----

void workers_sleep_when_nothing_follows() {
  const double slow = cost_ms(1, 2, 40, 0.15, [] {
    some_pass(2);
    std::this_thread::sleep_for(milliseconds(5));
  });
  expect(slow < 0.15, "a worker spins after a pass though its caller is slow:  (ms)", slow);

  const double ended = cost_ms(1, 2, 40, 0.2, [] {
    for (int i = 0; i < 3; ++i) some_pass(2);
    park_workers();
    std::this_thread::sleep_for(milliseconds(5));
  });
  expect(ended < 0.2, "a worker spins after the end of a text:  (ms)", ended);

  const double beyond = cost_ms(3, 4, 40, 0.15, [] {
    for (const auto until = Clock::now() + milliseconds(3); Clock::now() < until;) some_pass(2);
  });
  expect(beyond < 0.15, "a worker that no job wants spins:  (ms)", beyond);
}

// ---- floating-point state ----

bool floats_are_default() {
  volatile float one = 1.0f, three = 3.0f, small = 1e-38f, tenth = 0.1f;
  const bool nearest = one / three > 0.33333332f;
  return nearest && small * tenth > 0.0f;
}

void flush_denormals() {
#if defined(__x86_64__)
  _mm_setcsr(_mm_getcsr() | 0x8040);
#elif defined(__aarch64__)
  uint64_t state;
  asm volatile("mrs %0, fpcr" : "=r"(state));
  asm volatile("msr fpcr, %0" : : "r"(state | uint64_t{1} << 24));
#endif
}

void floats_do_not_follow_the_caller() {
  std::fesetround(FE_DOWNWARD);
  flush_denormals();
  expect(!floats_are_default(), "this test changes nothing");
  constexpr int kThreads = 6;  // some of them are created here
  limit_team(reserve_team(kThreads));
  {
    const TeamPass pass(kThreads);
    std::atomic<int> good{0};
    on_all(kThreads, [&](int) { good += floats_are_default(); });
    expect(good >= kThreads, "a thread computes with the floats of whoever started it");
  }
  expect(!floats_are_default(), "a pass changes its caller's floats");
  std::fesetenv(FE_DFL_ENV);
  expect(floats_are_default(), "this test leaves something behind");
}

// ---- a fork ----

int64_t sum_of_job() {
  std::atomic<int64_t> sum{0};
  share_out(1000, 10, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) sum += i;
  });
  return sum;
}

void a_forked_process_has_a_team() {
  std::atomic<bool> inside{false}, leave{false};
  std::thread other([&] {  // holds the pool's lock while the process forks
    limit_team(reserve_team(3));
    share_out(2, 1, [&](int64_t, int64_t, int) {
      inside = true;
      while (!leave) std::this_thread::yield();
    });
  });
  while (!inside) std::this_thread::yield();
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);
    limit_team(3);
    {
      const TeamPass pass(3);
      if (sum_of_job() != 499500) _exit(1);
    }
    std::atomic<int> threads{0};
    on_all(3, [&](int) { ++threads; });
    _exit(threads == 3 && reserve_team(4) == 4 && sum_of_job() == 499500 ? 0 : 2);
  }
  int status = -1;
  waitpid(child, &status, 0);
  leave = true;
  other.join();
  expect(WIFEXITED(status) && WEXITSTATUS(status) == 0, "a forked process cannot use the team", status);
}

}  // namespace

int main() {
  big_cores_are_counted();
  a_groups_limit_is_read();
  workers_sleep_when_nothing_follows();
  floats_do_not_follow_the_caller();
  a_forked_process_has_a_team();
  std::printf(failures == 0 ? "ok\n" : "failing: %d\n", failures);
  return failures != 0;
}
