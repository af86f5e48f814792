#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "gradientflow/collectives/collective.h"
#include "gradientflow/nccl/abi.h"

namespace gradientflow {

// What runs over the result of a reduction, for n elements of s bytes.
enum class AfterPass : std::uint8_t {
  kNone,
  // Looks for an inf or NaN: reads n * s bytes.
  kLook,
  // Scales, and looks, in place: reads and writes n * s each.
  kScale,
  // From the staging, converting, scaling and looking.
  kUnpack,
};

// How a call is carried out with what NCCL has. Depends on nothing but the call
// and the number of ranks, so all ranks plan alike.
struct NcclPlan {
  // The elements that take part are packed, as `type`, into the staging, and
  // reduced there; otherwise NCCL works on the caller's memory.
  bool staged = false;
  float pack_scale = 1.0F;
  DType type = DType::kFloat32;  // On the wire.
  nccl::RedOp op = nccl::RedOp::kSum;
  double premul = 1.0;  // Not 1: PreMulSum with it, instead of `op`.
  AfterPass after = AfterPass::kNone;
  float after_scale = 1.0F;
  bool look = false;  // For an inf or NaN, in the pass.
};

// REQUIRES a valid call, of an operation that NCCL has: not a bitwise one.
//
// A scale is applied where it costs no pass and no digits: float32 and float64
// sums take it as NCCL's pre-multiplication. Where elements convert, a mean is
// divided by the ranks on the way in (the sum stays in the wire's range) and
// scaled on the way out (a small gradient is not lost below the wire's range).
// Half-precision elements that do not convert are scaled afterwards, in
// float32, by the pass that looks for inf and NaN. UnscaleOf(call) is one more
// factor of the scale.
NcclPlan PlanNcclCall(const CollectiveCall& call, int size);

// For traces: "avg", "premul_sum 0.25, staged".
std::string Text(const NcclPlan& plan, const CollectiveCall& call);

// What this rank sends to others if `call` goes around a ring, in bytes.
std::uint64_t RingBytes(const CollectiveCall& call, int rank, int size);

}  // namespace gradientflow
