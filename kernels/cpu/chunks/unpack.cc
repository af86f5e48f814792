#include <cerrno>
#include <cstddef>
#include <cstdint>

#include "kernels/chunk_kernels.h"
#include "kernels/cpu/chunks/functions.h"
#include "kernels/kernels.h"

namespace gradientflow::kernels::cpu {
namespace {

int Convert(const ChunkUnpackArgs& args, const void* src, void* grads,
            std::size_t n, float scale) {
  return CpuKernels().convert({.src = src,
                               .src_type = args.packed_type,
                               .dst = grads,
                               .dst_type = args.type,
                               .settled = nullptr,
                               .n = n,
                               .scale = scale,
                               .nonfinite = args.nonfinite},
                              nullptr);
}

// Writes the mark of a kept chunk to all of it, if it is not finite.
int TakeMark(const ChunkUnpackArgs& args, std::size_t c) {
  const void* mark = ElementAt(args.marks, args.packed_type, c);
  std::uint32_t nonfinite = 0;
  int error = CpuKernels().find_nonfinite(
      {mark, args.packed_type, 1, &nonfinite}, nullptr);
  if (error != 0 || nonfinite == 0) return error;
  const Run run = RunOf(args.range, c);
  for (std::size_t i = 0; i < run.count && error == 0; ++i) {
    error = Convert(args, mark, ElementAt(args.grads, args.type, run.begin + i),
                    1, 1);
  }
  return error;
}

int Unpack(const ChunkUnpackArgs& args, std::size_t c) {
  const Run run = RunOf(args.range, c);
  void* grads = ElementAt(args.grads, args.type, run.begin);
  int error = 0;
  if (args.packed != nullptr) {
    const std::size_t slot = args.slots[c] - args.first_slot;
    error = Convert(args,
                    ElementAt(args.packed, args.packed_type,
                              slot * args.range.chunk_elements),
                    grads, run.count, args.scale);
  }
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
    int error = 0;
    if (args.slots[c] != kNotSent) {
      error = Unpack(args, c);
    } else if (args.marks != nullptr) {
      error = TakeMark(args, c);
    }
    if (error != 0) return error;
  }
  return 0;
}

}  // namespace gradientflow::kernels::cpu
