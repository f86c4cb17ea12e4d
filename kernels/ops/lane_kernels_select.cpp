#include <cstdlib>
#include <cstring>

#include "lane_kernels.h"

namespace streamfuse {

#define SF_DECLARE(ISA)           \
  namespace ISA {                 \
  extern const LaneKernels kTable; \
  }
#if defined(__x86_64__)
SF_DECLARE(avx512)
SF_DECLARE(avx2)
SF_DECLARE(portable)
#elif defined(__aarch64__)
SF_DECLARE(neon)
#else
SF_DECLARE(portable)
#endif

namespace {

const LaneKernels& select() {
#if defined(__x86_64__)
  const char* wish = std::getenv("STREAMFUSE_ISA");
  const auto allowed = [&](const char* name) { return wish == nullptr || *wish == 0 || std::strcmp(wish, name) == 0; };
  __builtin_cpu_init();
  const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool has_avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
                          __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw");
  if (has_avx512 && has_avx2 && allowed("avx512")) return avx512::kTable;
  if (has_avx2 && (allowed("avx2") || allowed("avx512"))) return avx2::kTable;
  return portable::kTable;
#elif defined(__aarch64__)
  return neon::kTable;
#else
  return portable::kTable;
#endif
}

}  // namespace

const LaneKernels& lane_kernels() {
  static const LaneKernels& chosen = select();
  return chosen;
}

}  // namespace streamfuse
