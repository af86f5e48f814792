#include <cerrno>
#include <cstddef>

#include "kernels/chunk_kernels.h"
#include "kernels/cpu/chunks/functions.h"
#include "kernels/kernels.h"

namespace gradientflow::kernels::cpu {

int ChunkRescale(const ChunkRescaleArgs& args, void*) {
  if (!IsAllowed(args.range)) return EINVAL;
  // A conversion by 1 would be a copy onto itself, which it may not be.
  if (args.range.count == 0 || args.factor == 1) return 0;
  const std::size_t begin = args.range.first * args.range.chunk_elements;
  const Run last = RunOf(args.range, args.range.first + args.range.count - 1);
  float* residual = args.residual + begin;
  return CpuKernels().convert({.src = residual,
                               .src_type = DType::kFloat32,
                               .dst = residual,
                               .dst_type = DType::kFloat32,
                               .settled = nullptr,
                               .n = last.begin + last.count - begin,
                               .scale = args.factor,
                               .nonfinite = nullptr},
                              nullptr);
}

}  // namespace gradientflow::kernels::cpu
