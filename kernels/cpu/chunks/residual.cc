#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstddef>

#include "kernels/chunk_kernels.h"
#include "kernels/cpu/chunks/functions.h"
#include "kernels/kernels.h"

namespace gradientflow::kernels::cpu {
namespace {

constexpr std::size_t kPiece = 1024;

// Packs `n` sums, and leaves the rounding error of each in its place.
int PackAndKeep(float* sums, std::size_t n, void* packed, DType packed_type,
                float scale) {
  float before[kPiece];
  for (std::size_t i = 0; i < n; i += kPiece) {
    const std::size_t count = std::min(kPiece, n - i);
    std::copy_n(sums + i, count, before);
    const int error =
        CpuKernels().convert({.src = sums + i,
                              .src_type = DType::kFloat32,
                              .dst = ElementAt(packed, packed_type, i),
                              .dst_type = packed_type,
                              .settled = sums + i,
                              .n = count,
                              .scale = scale,
                              .nonfinite = nullptr,
                              .settled_scale = 1 / scale},
                             nullptr);
    if (error != 0) return error;
    for (std::size_t e = 0; e < count; ++e) {
      const float left = before[e] - sums[i + e];
      sums[i + e] = std::isfinite(left) ? left : 0.0F;
    }
  }
  return 0;
}

int Convert(const void* src, DType type, const ChunkResidualArgs& args,
            void* packed, std::size_t n) {
  return CpuKernels().convert({.src = src,
                               .src_type = type,
                               .dst = packed,
                               .dst_type = args.packed_type,
                               .settled = nullptr,
                               .n = n,
                               .scale = args.scale,
                               .nonfinite = nullptr},
                              nullptr);
}

// Where chunk `c`, which is sent, begins in the packed buffer.
void* PackedAt(const ChunkResidualArgs& args, std::size_t c) {
  const std::size_t slot = args.slots[c] - args.first_slot;
  return ElementAt(args.packed, args.packed_type,
                   slot * args.range.chunk_elements);
}

// Adds the residual to the gradients, in place.
int SendInPlace(const ChunkResidualArgs& args, const Run& run) {
  return CpuKernels().residual(
      {.grads = ElementAt(args.grads, args.type, run.begin),
       .type = args.type,
       .residual = args.residual + run.begin,
       .n = run.count,
       .send = true,
       .zero_kept = args.zero_kept,
       .keep_factor = args.keep_factor,
       .norm = nullptr},
      nullptr);
}

// Adds up in the residual, which is overwritten in any case, so that no scratch
// memory is needed.
int SendPacked(const ChunkResidualArgs& args, std::size_t c, const Run& run) {
  float* residual = args.residual + run.begin;
  const void* grads = ElementAt(args.grads, args.type, run.begin);
  void* packed = PackedAt(args, c);
  const bool rounds = args.type != DType::kFloat32;
  if (!rounds && args.dirty != nullptr && args.dirty[c] == 0) {
    return Convert(grads, args.type, args, packed, run.count);
  }
  int error = CpuKernels().accumulate({.dst = residual,
                                       .dst_type = DType::kFloat32,
                                       .src = grads,
                                       .src_type = args.type,
                                       .n = run.count,
                                       .op = ReduceOp::kSum,
                                       .dst_scale = 1,
                                       .out_scale = 1,
                                       .nonfinite = nullptr},
                                      nullptr);
  if (error != 0) return error;
  if (rounds) {
    return PackAndKeep(residual, run.count, packed, args.packed_type,
                       args.scale);
  }
  error = Convert(residual, DType::kFloat32, args, packed, run.count);
  std::fill_n(residual, run.count, 0.0F);
  return error;
}

int Send(const ChunkResidualArgs& args, std::size_t c) {
  const Run run = RunOf(args.range, c);
  if (args.residual == nullptr) {  // It is in the gradients.
    if (args.dirty != nullptr) args.dirty[c] = 0;
    return args.packed == nullptr
               ? 0
               : Convert(ElementAt(args.grads, args.type, run.begin), args.type,
                         args, PackedAt(args, c), run.count);
  }
  const bool clean = args.dirty != nullptr && args.dirty[c] == 0;
  const bool in_place = args.packed == nullptr;
  if (in_place && clean) return 0;
  const int error =
      in_place ? SendInPlace(args, run) : SendPacked(args, c, run);
  // Chunks of 16 bits leave their rounding errors.
  if (args.dirty != nullptr) {
    args.dirty[c] = args.type != DType::kFloat32 ? 1 : 0;
  }
  return error;
}

int Keep(const ChunkResidualArgs& args, std::size_t c) {
  const Run run = RunOf(args.range, c);
  void* grads = ElementAt(args.grads, args.type, run.begin);
  const bool apart = args.residual != nullptr;
  float norm = 0;
  const int error =
      !apart && args.keep_factor == 1
          ? CpuKernels().l1_norm({.src = grads,
                                  .type = args.type,
                                  .n = run.count,
                                  .scale = 1,
                                  .norm = &norm},
                                 nullptr)
          : CpuKernels().residual(
                {.grads = grads,
                 .type = args.type,
                 .residual = apart ? args.residual + run.begin : nullptr,
                 .n = run.count,
                 .send = false,
                 .zero_kept = args.zero_kept,
                 .keep_factor = args.keep_factor,
                 .norm = &norm},
                nullptr);
  args.norms[c] = args.norm_scale * norm;
  if (args.dirty != nullptr) args.dirty[c] = norm != 0 ? 1 : 0;
  return error;
}

}  // namespace

int ChunkResidual(const ChunkResidualArgs& args, void*) {
  if (!IsAllowed(args.range) || !IsGradientType(args.type) ||
      !IsGradientType(args.packed_type) ||
      !SlotsAllowed(args.range, args.slots, args.first_slot) ||
      (args.residual == nullptr && args.zero_kept)) {
    return EINVAL;
  }
  for (std::size_t i = 0; i < args.range.count; ++i) {
    const std::size_t c = args.range.first + i;
    const int error = args.slots[c] != kNotSent ? Send(args, c) : Keep(args, c);
    if (error != 0) return error;
  }
  return 0;
}

}  // namespace gradientflow::kernels::cpu
