#pragma once

#include "kernels/kernels.h"

namespace gradientflow::kernels {

// Whether the counts and types are among those that kernels.h allows.
inline bool IsAllowed(const ReduceManyArgs& args) {
  if (args.sources < 1 || args.sources > kMaxParties) return false;
  if (args.dests < 1 || args.dests > kMaxParties) return false;
  if (args.own < -1 || args.own >= args.sources) return false;
  if (IsGradientType(args.dst_type)) {
    return IsGradientType(args.src_type) && IsGradientType(args.round_type);
  }
  if (args.src_type != args.dst_type) return false;
  if (args.round_type != args.dst_type) return false;
  return args.scale == 1 || args.dst_type == DType::kFloat64;
}

}  // namespace gradientflow::kernels
