#include "gradientflow/nccl/plan.h"

#include <numeric>

#include "gradientflow/base/str_cat.h"
#include "gradientflow/collectives/call_plan.h"

namespace gradientflow {
namespace {

nccl::RedOp OperatorFor(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
      return nccl::RedOp::kSum;
    case ReduceOp::kMin:
      return nccl::RedOp::kMin;
    case ReduceOp::kMax:
      return nccl::RedOp::kMax;
    case ReduceOp::kProduct:
      return nccl::RedOp::kProd;
    case ReduceOp::kMean:
      return nccl::RedOp::kAvg;
    case ReduceOp::kBitAnd:
    case ReduceOp::kBitOr:
    case ReduceOp::kBitXor:
      break;
  }
  return nccl::RedOp::kSum;
}

const char* NameOf(nccl::RedOp op) {
  constexpr const char* kNames[] = {"sum", "prod", "max", "min", "avg"};
  return kNames[static_cast<int>(op)];
}

std::size_t Sum(const std::vector<std::size_t>& counts) {
  return std::accumulate(counts.begin(), counts.end(), std::size_t{0});
}

}  // namespace

NcclPlan PlanNcclCall(const CollectiveCall& call, int size) {
  NcclPlan plan;
  plan.type = call.dtype;
  if (!Reduces(call.kind)) return plan;
  const bool gradients = IsGradientType(call.dtype);
  const bool mean = call.op == ReduceOp::kMean;
  const bool sum = mean || call.op == ReduceOp::kSum;
  plan.op = OperatorFor(call.op);
  // A caller that goes on ahead may look at the result itself.
  const bool wanted =
      call.submitted.run == nullptr || call.nonfinite != nullptr;
  plan.look =
      call.kind == CollectiveKind::kAllreduce && IsFloat(call.dtype) && wanted;
  const float scale = call.scale * UnscaleOf(call);
  plan.after_scale = scale;
  plan.staged = call.kind == CollectiveKind::kAllreduce &&
                (call.wire != call.dtype || call.extents.size() > 1);
  if (plan.staged) {
    plan.type = call.wire;
    plan.after = AfterPass::kUnpack;
    if (mean && gradients) {
      plan.op = nccl::RedOp::kSum;
      plan.pack_scale = 1.0F / static_cast<float>(size);
    }
    return plan;
  }
  if (sum && !TraitsOf(call.dtype).scale_before_sum && scale != 1.0F) {
    plan.premul = double{scale} / (mean ? size : 1);
    plan.after_scale = 1.0F;
  }
  if (plan.after_scale != 1.0F) {
    plan.after = AfterPass::kScale;
  } else if (plan.look) {
    // The kernel that only reads takes gradient types only.
    plan.after = gradients ? AfterPass::kLook : AfterPass::kScale;
  }
  return plan;
}

std::string Text(const NcclPlan& plan, const CollectiveCall& call) {
  const char* staged = plan.staged ? ", staged" : "";
  if (!Reduces(call.kind)) return "no reduction";
  if (plan.premul != 1.0) return StrCat("premul_sum ", plan.premul, staged);
  return StrCat(NameOf(plan.op), staged);
}

namespace {

// Returns the elements in one of `size` parts, which differ by at most one.
std::uint64_t PartOf(std::uint64_t count, int part, int size) {
  const auto parts = static_cast<std::uint64_t>(size);
  return count / parts +
         (static_cast<std::uint64_t>(part) % parts < count % parts ? 1 : 0);
}

}  // namespace

std::uint64_t RingBytes(const CollectiveCall& call, int rank, int size) {
  const std::uint64_t count = call.count;
  const auto others = static_cast<std::uint64_t>(size - 1);
  // In a broadcast along the ring, the rank before the root sends to no one; in
  // a reduction, the root does.
  const int last = (call.root + size - 1) % size;
  std::uint64_t elements = 0;
  switch (call.kind) {
    case CollectiveKind::kAllreduce:
      // A rank sends all parts except the one whose sum it ends up with, and
      // then all except the one that it receives last.
      elements = size == 1 ? 0
                           : 2 * count - PartOf(count, rank + 1, size) -
                                 PartOf(count, rank + 2, size);
      break;
    case CollectiveKind::kBroadcast:
      elements = rank != last ? count : 0;
      break;
    case CollectiveKind::kReduce:
      elements = rank != call.root ? count : 0;
      break;
    case CollectiveKind::kAllgather:
    case CollectiveKind::kReduceScatter:
      elements =
          (HasUnevenParts(call) ? call.recv_counts[rank] : count) * others;
      break;
    case CollectiveKind::kAllToAll:
      elements = Sum(call.send_counts) - call.send_counts[rank];
      break;
    case CollectiveKind::kGather:
      elements = rank != call.root ? call.recv_counts[rank] : 0;
      break;
    case CollectiveKind::kScatter:
      elements = rank == call.root
                     ? Sum(call.send_counts) - call.send_counts[rank]
                     : 0;
      break;
    case CollectiveKind::kBarrier:
      break;
  }
  if (size == 1) elements = 0;
  return elements * SizeOf(call.wire);
}

}  // namespace gradientflow
