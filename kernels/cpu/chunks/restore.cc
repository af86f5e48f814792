#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstddef>
#include <limits>

#include "kernels/chunk_kernels.h"
#include "kernels/cpu/chunks/functions.h"
#include "kernels/kernels.h"

namespace gradientflow::kernels::cpu {

namespace {

constexpr std::size_t kPiece = 1024;

float Finite(float v) { return std::isfinite(v) ? v : 0.0F; }

int Convert(const void* src, DType src_type, void* dst, DType dst_type,
            std::size_t n, float scale) {
  return CpuKernels().convert({.src = src,
                               .src_type = src_type,
                               .dst = dst,
                               .dst_type = dst_type,
                               .settled = nullptr,
                               .n = n,
                               .scale = scale,
                               .nonfinite = nullptr},
                              nullptr);
}

// Adds finite(scale * gradients) to the residual, or leaves it in the
// gradients if the residual is there.
int GiveBack(const ChunkRestoreArgs& args, const Run& run, float scale) {
  float sent[kPiece];
  for (std::size_t i = 0; i < run.count; i += kPiece) {
    const std::size_t count = std::min(kPiece, run.count - i);
    void* grads = ElementAt(args.grads, args.type, run.begin + i);
    int error = Convert(grads, args.type, sent, DType::kFloat32, count, scale);
    if (error != 0) return error;
    for (std::size_t e = 0; e < count; ++e) sent[e] = Finite(sent[e]);
    if (args.residual == nullptr) {
      error = Convert(sent, DType::kFloat32, grads, args.type, count, 1);
      if (error != 0) return error;
      continue;
    }
    float* residual = args.residual + run.begin + i;
    for (std::size_t e = 0; e < count; ++e) {
      residual[e] = Finite(Finite(residual[e]) + sent[e]);
    }
  }
  return 0;
}

// Makes `count` gradients NaN, from the `begin`th of the pool on.
int MakeNan(const ChunkRestoreArgs& args, std::size_t begin,
            std::size_t count) {
  float nans[kPiece];
  std::fill_n(nans, std::min(kPiece, count),
              std::numeric_limits<float>::quiet_NaN());
  for (std::size_t i = 0; i < count; i += kPiece) {
    const int error = Convert(nans, DType::kFloat32,
                              ElementAt(args.grads, args.type, begin + i),
                              args.type, std::min(kPiece, count - i), 1);
    if (error != 0) return error;
  }
  return 0;
}

int Hide(const ChunkRestoreArgs& args, const Run& run) {
  const std::size_t run_end = run.begin + run.count;
  const TensorRun* const end = args.hidden + args.hidden_count;
  const TensorRun* tensor = std::partition_point(
      args.hidden, end, [&](const TensorRun& t) { return t.end <= run.begin; });
  for (; tensor != end && tensor->begin < run_end; ++tensor) {
    const std::size_t begin = std::max<std::size_t>(tensor->begin, run.begin);
    const std::size_t stop = std::min<std::size_t>(tensor->end, run_end);
    if (const int error = MakeNan(args, begin, stop - begin); error != 0) {
      return error;
    }
  }
  return 0;
}

// Brings the residual of the run up to date, or the gradients if it is there.
int Restore(const ChunkRestoreArgs& args, const Run& run, bool sent) {
  if (sent || args.residual == nullptr) {
    return GiveBack(args, run, sent ? args.scale : 1);
  }
  float* residual = args.residual + run.begin;
  for (std::size_t e = 0; e < run.count; ++e) residual[e] = Finite(residual[e]);
  return 0;
}

}  // namespace

int ChunkRestore(const ChunkRestoreArgs& args, void*) {
  if (!IsAllowed(args.range) || !IsGradientType(args.type)) return EINVAL;
  if (args.hidden != nullptr && args.residual == nullptr) return EINVAL;
  if (args.range.count == 0) return 0;
  if (args.only_if != nullptr && *args.only_if == 0) return 0;
  for (std::size_t i = 0; i < args.range.count; ++i) {
    const std::size_t c = args.range.first + i;
    const Run run = RunOf(args.range, c);
    const bool sent = args.slots[c] != kNotSent;
    int error = Restore(args, run, sent);
    if (error == 0 && args.hidden != nullptr) error = Hide(args, run);
    if (error != 0) return error;
    if (sent && args.dirty != nullptr) args.dirty[c] = 1;
  }
  return 0;
}

}  // namespace gradientflow::kernels::cpu
