#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "kernels/chunk_kernels.h"
#include "kernels/cpu/chunks/functions.h"

namespace gradientflow::kernels {

// The CPU needs one id per chunk; a GPU needs no workspace.
std::size_t TopKWorkspaceBytes(std::size_t chunks) {
  return (chunks + 3) / 4 * 4 * sizeof(std::uint32_t);
}

namespace cpu {
namespace {

constexpr std::size_t kMaxChunks = std::size_t{1} << 31;

float Rank(float norm) {
  return std::isfinite(norm) ? norm : std::numeric_limits<float>::infinity();
}

bool IsAlways(const TopKArgs& args, std::size_t c) {
  return args.always != nullptr && args.always[c] != 0;
}

// Moves the k highest of [ids, ids + count) to the front. The order is total,
// so the result does not depend on the algorithm.
void MoveHighestToFront(const float* norms, std::uint32_t* ids,
                        std::size_t count, std::size_t k) {
  std::nth_element(ids, ids + k, ids + count,
                   [norms](std::uint32_t a, std::uint32_t b) {
                     const float norm_a = Rank(norms[a]);
                     const float norm_b = Rank(norms[b]);
                     return norm_a != norm_b ? norm_a > norm_b : a < b;
                   });
}

}  // namespace

int TopK(const TopKArgs& args, void*) {
  if (args.k > args.chunks || args.chunks > kMaxChunks) return EINVAL;
  auto* ids = static_cast<std::uint32_t*>(args.workspace);
  std::size_t always = 0;
  for (std::size_t c = 0; c < args.chunks; ++c) {
    if (IsAlways(args, c)) {
      ++always;
    } else {
      ids[c - always] = static_cast<std::uint32_t>(c);
    }
  }
  if (always > args.k) return EINVAL;
  const std::size_t wanted = args.k - always;
  MoveHighestToFront(args.norms, ids, args.chunks - always, wanted);

  bool nonfinite = false;
  for (std::size_t c = 0; c < args.chunks; ++c) {
    args.selected[c] = IsAlways(args, c) ? 1 : 0;
    nonfinite |= !std::isfinite(args.norms[c]);
  }
  for (std::size_t i = 0; i < wanted; ++i) args.selected[ids[i]] = 1;
  std::uint32_t slot = 0;
  for (std::size_t c = 0; c < args.chunks; ++c) {
    args.slots[c] = args.selected[c] != 0 ? slot++ : kNotSent;
  }
  if (nonfinite && args.nonfinite != nullptr) *args.nonfinite = 1;
  return 0;
}

}  // namespace cpu
}  // namespace gradientflow::kernels
