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

float Finite(float v) { return std::isfinite(v) ? v : 0.0F; }

int GiveBack(const ChunkRestoreArgs& args, const Run& run) {
  float* residual = args.residual + run.begin;
  float sent[kPiece];
  for (std::size_t i = 0; i < run.count; i += kPiece) {
    const std::size_t count = std::min(kPiece, run.count - i);
    const int error = CpuKernels().convert(
        {.src = ElementAt(args.grads, args.type, run.begin + i),
         .src_type = args.type,
         .dst = sent,
         .dst_type = DType::kFloat32,
         .settled = nullptr,
         .n = count,
         .scale = args.scale,
         .nonfinite = nullptr},
        nullptr);
    if (error != 0) return error;
    for (std::size_t e = 0; e < count; ++e) {
      residual[i + e] = Finite(Finite(residual[i + e]) + Finite(sent[e]));
    }
  }
  return 0;
}

}  // namespace

int ChunkRestore(const ChunkRestoreArgs& args, void*) {
  if (!IsAllowed(args.range) || !IsGradientType(args.type)) return EINVAL;
  for (std::size_t i = 0; i < args.range.count; ++i) {
    const std::size_t c = args.range.first + i;
    const Run run = RunOf(args.range, c);
    if (args.slots[c] != kNotSent) {
      if (const int error = GiveBack(args, run); error != 0) return error;
      if (args.dirty != nullptr) args.dirty[c] = 1;
      continue;
    }
    float* residual = args.residual + run.begin;
    for (std::size_t e = 0; e < run.count; ++e) {
      residual[e] = Finite(residual[e]);
    }
  }
  return 0;
}

}  // namespace gradientflow::kernels::cpu
