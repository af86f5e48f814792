#include "kernels/cpu/functions.h"
#include "kernels/kernels.h"

// The instruction sets that the vector kernels were compiled for: none on a CPU
// family other than x86. This file uses no vectors, only Highway's target
// macros.
#include "hwy/detect_targets.h"

#if HWY_ARCH_X86
#include <cpuid.h>
#endif

namespace gradientflow::kernels {
namespace {

// All pointers of a table, from one namespace.
#define GRADIENTFLOW_TABLE(name, space)                                 \
  CpuKernelTable {                                                      \
    {name, &space::Convert, &space::ReduceMany, &space::FindNonfinite}, \
        &space::Accumulate, &space::Residual, &space::L1Norm,           \
        &space::SumSquares, &space::Sgd                                 \
  }

constexpr CpuKernelTable kScalar = GRADIENTFLOW_TABLE("cpu-scalar", scalar);

#if HWY_TARGETS & HWY_AVX2
constexpr CpuKernelTable kAvx2 = GRADIENTFLOW_TABLE("cpu-avx2", N_AVX2);

// clang 14's __builtin_cpu_supports does not know f16c.
bool HasF16c() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
}

// __builtin_cpu_supports also asks whether the OS saves the registers.
bool HasAvx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
         __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2") &&
         HasF16c();
}
#endif

#if HWY_TARGETS & HWY_AVX3
constexpr CpuKernelTable kAvx512 = GRADIENTFLOW_TABLE("cpu-avx512", N_AVX3);

bool HasAvx512() {
  return HasAvx2() && __builtin_cpu_supports("avx512f") &&
         __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512vl");
}
#endif

#undef GRADIENTFLOW_TABLE

// The tables that this CPU can run, slowest first, then nulls.
struct Usable {
  const CpuKernelTable* tables[4] = {};
  int count = 0;
};

Usable FindUsable() {
  Usable usable;
  usable.tables[usable.count++] = &kScalar;
#if HWY_TARGETS & HWY_AVX2
  if (HasAvx2()) usable.tables[usable.count++] = &kAvx2;
#endif
#if HWY_TARGETS & HWY_AVX3
  if (HasAvx512()) usable.tables[usable.count++] = &kAvx512;
#endif
  return usable;
}

const Usable& GetUsable() {
  static const Usable usable = FindUsable();
  return usable;
}

}  // namespace

const CpuKernelTable& CpuKernels() {
  const Usable& usable = GetUsable();
  return *usable.tables[usable.count - 1];
}

const CpuKernelTable* const* AllCpuKernels() { return GetUsable().tables; }

}  // namespace gradientflow::kernels
