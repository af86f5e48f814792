#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "gradientflow/collectives/collective.h"
#include "gradientflow/nccl/abi.h"

namespace gradientflow {

// The pass over the result of a reduction, for n elements of s bytes.
enum class AfterPass : std::uint8_t {
  kNone,
  // Looks for an infinity or NaN: reads n * s bytes.
  kLook,
  // Scales, and looks, in place: reads n * s bytes and writes as many.
  kScale,
  // Copies from the staging memory, and converts, scales and looks.
  kUnpack,
};

// How a call is carried out with what NCCL has. Depends only on the call and
// the number of ranks, so all ranks make the same plan.
struct NcclPlan {
  // If true, the elements that take part are packed into the staging memory, as
  // `type`, and reduced there. Otherwise NCCL works on the caller's memory.
  bool staged = false;
  float pack_scale = 1.0F;
  DType type = DType::kFloat32;  // On the wire.
  nccl::RedOp op = nccl::RedOp::kSum;
  double premul = 1.0;  // If not 1, PreMulSum with it replaces `op`.
  AfterPass after = AfterPass::kNone;
  float after_scale = 1.0F;
  bool look = false;  // The pass looks for an infinity or NaN.
};

// Plans a call. REQUIRES a valid call whose operation NCCL has, so not a
// bitwise one.
//
// A scale is applied where it costs neither a pass nor digits. Sums of float32
// and float64 take it as NCCL's pre-multiplication. Where elements convert, a
// mean is divided by the number of ranks as it is packed, so that the sum stays
// in the wire's range, and scaled as it is unpacked, so that a small gradient
// is not lost below the wire's range. 16-bit elements that do not convert are
// scaled afterwards, in float32, by the pass that looks for infinities and NaN.
// UnscaleOf(call) is one more factor of the scale.
NcclPlan PlanNcclCall(const CollectiveCall& call, int size);

// Returns a text for traces: "avg", "premul_sum 0.25, staged".
std::string Text(const NcclPlan& plan, const CollectiveCall& call);

// Returns the bytes that this rank sends to others if `call` goes around a
// ring.
std::uint64_t RingBytes(const CollectiveCall& call, int rank, int size);

}  // namespace gradientflow
