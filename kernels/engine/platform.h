// ExecuTorch's platform layer, bent so that its messages reach our callers and its aborts do not end the process.
#pragma once

#include <string>

namespace streamfuse {

// While one lives, ExecuTorch's error messages of this thread are collected instead of printed, and its abort becomes
// an exception of type Aborted on this thread. Set STREAMFUSE_LOG=1 to print everything as well.
class PlatformScope {
 public:
  PlatformScope();
  ~PlatformScope();
  PlatformScope(const PlatformScope&) = delete;
  PlatformScope& operator=(const PlatformScope&) = delete;

  // Collected error messages, oldest first, joined by "; "; empty if none.
  std::string errors() const;
  // The operators that "Missing operator" messages named, joined by ", "; empty if none.
  std::string missing_operators() const;
  void clear();

 private:
  PlatformScope* outer_;
};

struct Aborted {};

bool prints_everything();  // STREAMFUSE_LOG

// ExecuTorch's process-wide pool works with at most so many of its threads while a lease lives; the first of several
// decides. The pool itself is never made anew: delegates of any model in the process point to it.
class PoolLease {
 public:
  explicit PoolLease(int num_threads);
  ~PoolLease();
  PoolLease(const PoolLease&) = delete;
  PoolLease& operator=(const PoolLease&) = delete;
};

#if defined(__APPLE__)
inline constexpr const char* kLibrarySuffix = ".dylib";
#else
inline constexpr const char* kLibrarySuffix = ".so";
#endif

// The folder of the library with ExecuTorch's runtime, with a slash at its end; empty if the system cannot tell.
std::string executorch_folder();

// Loads the wheel's quantized kernels (4-bit and 8-bit embedding lookups) if they lie beside libexecutorch and none are
// registered. It is not linked, because an exporter's process may hold the same operators already through
// executorch.kernels.quantized, and a second registration stops the process.
bool load_quantized_kernels();

}  // namespace streamfuse
