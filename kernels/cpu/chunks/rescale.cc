#include <cerrno>
#include <cstddef>

#include "kernels/chunk_kernels.h"
#include "kernels/cpu/chunks/functions.h"
#include "kernels/kernels.h"

namespace gradientflow::kernels::cpu {

int ChunkRescale(const ChunkRescaleArgs& args, void*) {
  if (!IsAllowed(args.range)) return EINVAL;
  // A conversion by 1 would be a copy onto itself, which is not allowed.
  if (args.factor == 1) return 0;
  for (std::size_t i = 0; i < args.range.count; ++i) {
    const std::size_t c = args.range.first + i;
    if (args.dirty != nullptr && args.dirty[c] == 0) continue;
    const Run run = RunOf(args.range, c);
    const bool apart = args.residual != nullptr;
    const DType type = apart ? DType::kFloat32 : args.type;
    void* residual =
        ElementAt(apart ? args.residual : args.grads, type, run.begin);
    const int error = CpuKernels().convert({.src = residual,
                                            .src_type = type,
                                            .dst = residual,
                                            .dst_type = type,
                                            .settled = nullptr,
                                            .n = run.count,
                                            .scale = args.factor,
                                            .nonfinite = nullptr},
                                           nullptr);
    if (error != 0) return error;
  }
  return 0;
}

}  // namespace gradientflow::kernels::cpu
