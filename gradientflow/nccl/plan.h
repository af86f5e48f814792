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

// Which side adds up where partial sums of NCCL would have 16 bits.
enum class NcclSums : std::uint8_t {
  kFloat32,  // A kernel of ours, in float32; see exchange.h.
  kNccl,     // NCCL, which rounds partial sums to 16 bits.
};

// How a call is carried out with what NCCL has. Depends only on the call, the
// number of ranks and a setting, so all ranks make the same plan.
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

  // If true, the ranks exchange elements of `type` and add them up themselves,
  // in place of NCCL's reduction: exchange.h.
  bool exchange = false;
  std::size_t block = 0;   // Elements that each rank adds up; 0: one phase.
  float sum_scale = 1.0F;  // Of the sums, before they are rounded.
  // The kernel that adds up looks for an infinity or NaN, as there is no pass
  // over the result.
  bool look_at_sums = false;
};

// Plans a call. REQUIRES a valid call whose operation NCCL has, so not a
// bitwise one.
//
// A scale, and the division of a mean, are applied in float32 and where that
// costs neither a pass nor digits. Sums of float32 and float64 take a scale as
// NCCL's pre-multiplication. Where we add up ourselves, sums are divided before
// they are rounded.
//
// Partial sums of NCCL must stay in the range of 16 bits. 1/size itself would
// be rounded to 16 bits there, which is the same error for all elements. So the
// elements are divided by a power of two beforehand, which rounds nothing, and
// the sums are corrected in float32 afterwards. Any other scale comes after the
// sum, so that a small gradient is not lost below the wire's range.
// UnscaleOf(call) is one more factor of the scale.
NcclPlan PlanNcclCall(const CollectiveCall& call, int size,
                      NcclSums sums = NcclSums::kFloat32);

// Returns a text for traces: "avg", "premul_sum 0.25, staged", "exchange".
std::string Text(const NcclPlan& plan, const CollectiveCall& call);

// Returns the bytes that this rank sends to others: those of plan.exchange, or
// of a ring.
std::uint64_t SentBytes(const CollectiveCall& call, const NcclPlan& plan,
                        int rank, int size);

}  // namespace gradientflow
