#include "gradientflow/nccl/plan.h"

#include <bit>
#include <numeric>
#include <utility>
#include <vector>

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

// Two ranks add once, which rounds once.
constexpr int kRanksThatRoundOnce = 2;
// What a rank may send in one phase. More takes longer than a second call of
// NCCL.
constexpr std::size_t kOnePhaseBytes = std::size_t{128} << 10;
constexpr std::size_t kPackBytes = 16;  // Of a vector load.

bool HasNarrowSums(DType type) { return TraitsOf(type).narrow_sums; }

std::size_t BlockOf(const CollectiveCall& call, DType type, int size) {
  const auto ranks = static_cast<std::size_t>(size);
  if (call.kind == CollectiveKind::kReduceScatter) return call.count;
  if ((ranks - 1) * call.count * SizeOf(type) <= kOnePhaseBytes) return 0;
  const std::size_t pack = kPackBytes / SizeOf(type);
  return call.count / ranks / pack * pack;
}

// The sums of an exchange.
void PlanExchange(const CollectiveCall& call, int size, NcclPlan* plan) {
  plan->exchange = true;
  plan->block = BlockOf(call, plan->type, size);
  plan->op = nccl::RedOp::kSum;
  if (call.op == ReduceOp::kMean) {
    plan->sum_scale = 1.0F / static_cast<float>(size);
  }
  if (plan->type == call.dtype) {
    plan->sum_scale *= std::exchange(plan->after_scale, 1.0F);
  }
  plan->after = plan->staged ? AfterPass::kUnpack : AfterPass::kNone;
  plan->look_at_sums = plan->look && !plan->staged;
}

// The mean of NCCL's sums of a gradient type. Returns by what the elements are
// multiplied beforehand; the sums are multiplied by plan->after_scale.
float PlanMean(int size, NcclPlan* plan) {
  const auto ranks = static_cast<unsigned>(size);
  const auto power = HasNarrowSums(plan->type)
                         ? static_cast<float>(std::bit_ceil(ranks))
                         : 1.0F;
  plan->op = nccl::RedOp::kSum;
  plan->after_scale *= power / static_cast<float>(size);
  return 1.0F / power;
}

// Sums, minima and so on by NCCL in the caller's memory.
void PlanInPlace(const CollectiveCall& call, int size, NcclPlan* plan) {
  const bool mean = call.op == ReduceOp::kMean;
  const bool sum = mean || call.op == ReduceOp::kSum;
  const float scale = plan->after_scale;
  if (sum && !HasNarrowSums(call.dtype) && scale != 1.0F) {
    plan->premul = double{scale} / (mean ? size : 1);
    plan->after_scale = 1.0F;
  } else if (mean && HasNarrowSums(call.dtype) &&
             !std::has_single_bit(static_cast<unsigned>(size))) {
    plan->premul = double{PlanMean(size, plan)};
  }
  if (plan->after_scale != 1.0F) {
    plan->after = AfterPass::kScale;
  } else if (plan->look) {
    // The kernel that only reads takes gradient types only.
    plan->after =
        IsGradientType(call.dtype) ? AfterPass::kLook : AfterPass::kScale;
  }
}

// Returns the elements in one of `size` parts, which differ by at most one.
std::uint64_t PartOf(std::uint64_t count, int part, int size) {
  const auto parts = static_cast<std::uint64_t>(size);
  return count / parts +
         (static_cast<std::uint64_t>(part) % parts < count % parts ? 1 : 0);
}

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

std::uint64_t ExchangeBytes(const CollectiveCall& call, const NcclPlan& plan,
                            int rank, int size) {
  const auto others = static_cast<std::uint64_t>(size - 1);
  const bool scatters = call.kind == CollectiveKind::kReduceScatter;
  const std::uint64_t tail =
      scatters ? 0 : call.count - static_cast<std::uint64_t>(size) * plan.block;
  std::uint64_t elements = others * plan.block;
  if (call.kind == CollectiveKind::kReduce) {
    if (rank != call.root) elements += tail + plan.block;
  } else {
    elements += others * (tail + (scatters ? 0 : plan.block));
  }
  return elements * SizeOf(plan.type);
}

}  // namespace

NcclPlan PlanNcclCall(const CollectiveCall& call, int size, NcclSums sums) {
  NcclPlan plan;
  plan.type = call.dtype;
  if (!Reduces(call.kind)) return plan;
  const bool all = call.kind == CollectiveKind::kAllreduce;
  const bool mean = call.op == ReduceOp::kMean;
  const bool sum = mean || call.op == ReduceOp::kSum;
  plan.op = OperatorFor(call.op);
  // A caller that goes on ahead may look at the result itself.
  const bool wanted =
      call.submitted.run == nullptr || call.nonfinite != nullptr;
  plan.look = all && IsFloat(call.dtype) && wanted;
  plan.after_scale = call.scale * UnscaleOf(call);
  plan.staged = all && (call.wire != call.dtype || call.extents.size() > 1);
  if (plan.staged) plan.type = call.wire;
  if (sum && HasNarrowSums(plan.type) && sums == NcclSums::kFloat32 &&
      size > kRanksThatRoundOnce) {
    PlanExchange(call, size, &plan);
  } else if (plan.staged) {
    plan.after = AfterPass::kUnpack;
    if (mean && IsGradientType(call.dtype)) {
      plan.pack_scale = PlanMean(size, &plan);
    }
  } else {
    PlanInPlace(call, size, &plan);
  }
  return plan;
}

std::string Text(const NcclPlan& plan, const CollectiveCall& call) {
  const char* staged = plan.staged ? ", staged" : "";
  if (!Reduces(call.kind)) return "no reduction";
  if (plan.exchange) return StrCat("exchange", staged);
  if (plan.premul != 1.0) return StrCat("premul_sum ", plan.premul, staged);
  return StrCat(NameOf(plan.op), staged);
}

std::uint64_t SentBytes(const CollectiveCall& call, const NcclPlan& plan,
                        int rank, int size) {
  return plan.exchange ? ExchangeBytes(call, plan, rank, size)
                       : RingBytes(call, rank, size);
}

}  // namespace gradientflow
