#include "rounding.h"

#include <cstdlib>
#include <cstring>

#if defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#elif defined(__aarch64__) && defined(__APPLE__)
#include <sys/sysctl.h>
#elif defined(__x86_64__)
#include <cpuid.h>
#endif

#include "lane_kernels.h"

namespace streamfuse {

#define SF_DECLARE(ISA)            \
  namespace ISA {                  \
  extern const LaneKernels kTable; \
  }
#if defined(__x86_64__)
SF_DECLARE(avx512)
#if defined(STREAMFUSE_AVX_VNNI)
SF_DECLARE(avx_vnni)
#endif
SF_DECLARE(avx2)
SF_DECLARE(portable)
#elif defined(__aarch64__)
SF_DECLARE(neon_i8mm)
SF_DECLARE(neon_dot)
SF_DECLARE(neon)
#else
SF_DECLARE(portable)
#endif

namespace {

// Whether STREAMFUSE_ISA is unset or one of these names: the first is the table's own, the others those it replaces.
template <typename... Names>
bool allowed(Names... names) {
  const char* wish = std::getenv("STREAMFUSE_ISA");
  return wish == nullptr || *wish == 0 || ((std::strcmp(wish, names) == 0) || ...);
}

#if defined(__x86_64__)
// Older versions of Clang do not support this name in __builtin_cpu_supports.
bool has_f16c() {
  unsigned a, b, c, d;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}
#if defined(STREAMFUSE_AVX_VNNI)
bool has_avx_vnni() {
  unsigned a, b, c, d;
  return __get_cpuid_count(7, 1, &a, &b, &c, &d) != 0 && (a & 1u << 4) != 0;
}
#endif
#elif defined(__aarch64__)
struct ArmFeatures {
#if defined(__linux__)
  bool dot_product = (getauxval(AT_HWCAP) & 1ul << 20) != 0;      // HWCAP_ASIMDDP
  bool matrix_product = (getauxval(AT_HWCAP2) & 1ul << 13) != 0;  // HWCAP2_I8MM
#elif defined(__APPLE__)
  // Dot products: since A13 and M1; matrix products: since A15 and M2.
  bool dot_product = has("hw.optional.arm.FEAT_DotProd");
  bool matrix_product = has("hw.optional.arm.FEAT_I8MM");

  static bool has(const char* feature) {
    int value = 0;
    size_t size = sizeof value;
    return sysctlbyname(feature, &value, &size, nullptr, 0) == 0 && value != 0;
  }
#else
  bool dot_product = false, matrix_product = false;
#endif
};
#endif

const LaneKernels& select() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
  const bool has_avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
                          __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw") &&
                          __builtin_cpu_supports("avx512vnni");
  if (has_avx512 && has_avx2 && allowed("avx512")) return avx512::kTable;
#if defined(STREAMFUSE_AVX_VNNI)
  if (has_avx2 && has_avx_vnni() && allowed("avx_vnni", "avx512")) return avx_vnni::kTable;
#endif
  if (has_avx2 && allowed("avx2", "avx_vnni", "avx512")) return avx2::kTable;
  return portable::kTable;
#elif defined(__aarch64__)
  const ArmFeatures cpu;
  if (cpu.matrix_product && cpu.dot_product && allowed("neon_i8mm")) return neon_i8mm::kTable;
  if (cpu.dot_product && allowed("neon_dot", "neon_i8mm")) return neon_dot::kTable;
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
