#include <cerrno>
#include <cstddef>

#include "kernels/chunk_kernels.h"
#include "kernels/cpu/chunks/functions.h"
#include "kernels/kernels.h"

namespace gradientflow::kernels::cpu {
namespace {

int Convert(const ChunkUnpackArgs& args, std::size_t c, void* grads,
            std::size_t n) {
  const std::size_t slot = args.slots[c] - args.first_slot;
  return CpuKernels().convert(
      {.src = ElementAt(args.packed, args.packed_type,
                        slot * args.range.chunk_elements),
       .src_type = args.packed_type,
       .dst = grads,
       .dst_type = args.type,
       .settled = nullptr,
       .n = n,
       .scale = args.scale,
       .nonfinite = args.nonfinite},
      nullptr);
}

int Unpack(const ChunkUnpackArgs& args, std::size_t c) {
  const Run run = RunOf(args.range, c);
  void* grads = ElementAt(args.grads, args.type, run.begin);
  int error = args.packed == nullptr ? 0 : Convert(args, c, grads, run.count);
  if (error != 0) return error;
  float norm = 0;
  error = CpuKernels().l1_norm({.src = grads,
                                .type = args.type,
                                .n = run.count,
                                .scale = args.norm_scale,
                                .norm = &norm},
                               nullptr);
  args.norms[c] = norm;
  return error;
}

}  // namespace

int ChunkUnpack(const ChunkUnpackArgs& args, void*) {
  if (!IsAllowed(args.range) || !IsGradientType(args.type) ||
      !IsGradientType(args.packed_type) ||
      !SlotsAllowed(args.range, args.slots, args.first_slot)) {
    return EINVAL;
  }
  for (std::size_t i = 0; i < args.range.count; ++i) {
    const std::size_t c = args.range.first + i;
    if (args.slots[c] == kNotSent) continue;
    if (const int error = Unpack(args, c); error != 0) return error;
  }
  return 0;
}

}  // namespace gradientflow::kernels::cpu
