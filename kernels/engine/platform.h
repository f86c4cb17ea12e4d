// ExecuTorch's platform layer, replaced so that messages reach callers and aborts do not end the process.
#pragma once

#include <string>

namespace streamfuse {

// While one exists, ExecuTorch's error messages on this thread are collected instead of printed, and its abort throws
// Aborted on this thread. STREAMFUSE_LOG=1 also prints everything.
class PlatformScope {
 public:
  PlatformScope();
  ~PlatformScope();
  PlatformScope(const PlatformScope&) = delete;
  PlatformScope& operator=(const PlatformScope&) = delete;

  // Collected error messages, oldest first, joined by "; "; empty if there are none.
  std::string errors() const;
  // The operators in "Missing operator" messages, joined by ", "; empty if there are none.
  std::string missing_operators() const;
  void clear();

 private:
  PlatformScope* outer_;
};

struct Aborted {};

bool prints_everything();  // STREAMFUSE_LOG

// Limits the number of threads in ExecuTorch's process-wide pool while a lease exists; the first of several leases
// decides, and the pool has at most a thread per core. The pool itself is never recreated, since delegates of every
// model in the process point to it.
class PoolLease {
 public:
  explicit PoolLease(int num_threads);
  ~PoolLease();
  PoolLease(const PoolLease&) = delete;
  PoolLease& operator=(const PoolLease&) = delete;

  int threads() const { return threads_; }  // of the pool while this lease exists; 0 if unknown

 private:
  int threads_ = 0;
};

#if defined(__APPLE__)
inline constexpr const char* kLibrarySuffix = ".dylib";
#else
inline constexpr const char* kLibrarySuffix = ".so";
#endif

// The folder of ExecuTorch's runtime library, ending with a slash; empty if it cannot be determined.
std::string executorch_folder();

// Loads the wheel's quantized kernels (4-bit and 8-bit embedding look-ups) if they are in libexecutorch's folder and
// none are registered. They are not linked, because an exporting process may already have the same operators through
// executorch.kernels.quantized, and registering them twice aborts the process.
bool load_quantized_kernels();

}  // namespace streamfuse
