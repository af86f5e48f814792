#include <cerrno>
#include <cmath>
#include <cstddef>

#include "kernels/chunk_kernels.h"
#include "kernels/cpu/chunks/functions.h"
#include "kernels/kernels.h"

namespace gradientflow::kernels::cpu {

int ChunkRestore(const ChunkRestoreArgs& args, void*) {
  if (!IsAllowed(args.range) || !IsGradientType(args.type)) return EINVAL;
  for (std::size_t i = 0; i < args.range.count; ++i) {
    const std::size_t c = args.range.first + i;
    const Run run = RunOf(args.range, c);
    float* residual = args.residual + run.begin;
    if (args.slots[c] != kNotSent) {
      const int error = CpuKernels().convert(
          {.src = ElementAt(args.grads, args.type, run.begin),
           .src_type = args.type,
           .dst = residual,
           .dst_type = DType::kFloat32,
           .settled = nullptr,
           .n = run.count,
           .scale = args.scale,
           .nonfinite = nullptr},
          nullptr);
      if (error != 0) return error;
    }
    for (std::size_t e = 0; e < run.count; ++e) {
      if (!std::isfinite(residual[e])) residual[e] = 0;
    }
  }
  return 0;
}

}  // namespace gradientflow::kernels::cpu
