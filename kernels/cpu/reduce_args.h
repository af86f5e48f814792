#pragma once

#include "kernels/kernels.h"

// Whether counts, types and operations are among those that kernels.h allows.
namespace gradientflow::kernels {

inline bool IsAllowed(const AccumulateArgs& args) {
  if (!Combines(args.op, args.dst_type)) return false;
  if (IsGradientType(args.dst_type)) return IsGradientType(args.src_type);
  if (args.src_type != args.dst_type) return false;
  return IsFloat(args.dst_type) || (args.dst_scale == 1 && args.out_scale == 1);
}

inline bool IsAllowed(const ReduceManyArgs& args) {
  if (args.sources < 1 || args.sources > kMaxParties) return false;
  if (args.dests < 1 || args.dests > kMaxParties) return false;
  if (args.own < -1 || args.own >= args.sources) return false;
  if (!Combines(args.op, args.dst_type)) return false;
  if (IsGradientType(args.dst_type)) {
    return IsGradientType(args.src_type) && IsGradientType(args.wire_type) &&
           IsGradientType(args.round_type);
  }
  if (args.src_type != args.dst_type) return false;
  if (args.round_type != args.dst_type || args.last_scale != 1) return false;
  return IsFloat(args.dst_type) || args.scale == 1;
}

}  // namespace gradientflow::kernels
