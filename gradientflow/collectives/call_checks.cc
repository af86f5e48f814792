#include <algorithm>
#include <cstddef>
#include <limits>
#include <string>
#include <vector>

#include "gradientflow/base/str_cat.h"
#include "gradientflow/collectives/call_plan.h"

// Whether a call makes sense for its group, as far as one rank can see.
namespace gradientflow {
namespace {

Status Invalid(const CollectiveCall& call, const std::string& what) {
  return Status(StatusCode::kInvalidArgument,
                StrCat(Name(call.kind), ": ", what));
}

// Which dtypes, operations and scales go together.
Status ValidateTypes(const CollectiveCall& call) {
  if (!kernels::IsDType(call.dtype) || !kernels::IsDType(call.wire)) {
    return Invalid(call, "unknown dtype");
  }
  if (static_cast<int>(call.op) >= kReduceOps) {
    return Invalid(call, StrCat("unknown operation ", int(call.op)));
  }
  if (call.wire != call.dtype &&
      (call.kind != CollectiveKind::kAllreduce || !IsGradientType(call.dtype) ||
       !IsGradientType(call.wire))) {
    return Invalid(call, StrCat("wire dtype ", Name(call.wire), " for ",
                                Name(call.dtype), ": only an allreduce of ",
                                GradientTypeNames(), " can convert"));
  }
  if (call.unscale != 1.0F && (call.kind != CollectiveKind::kAllreduce ||
                               !IsGradientType(call.dtype))) {
    return Invalid(call, StrCat("only an allreduce of ", GradientTypeNames(),
                                " unscales, not one of ", Name(call.dtype)));
  }
  if (!Reduces(call.kind)) return Status();
  if (!IsFloat(call.dtype) &&
      (call.op == ReduceOp::kMean || call.scale != 1.0F)) {
    return Invalid(call, StrCat("a mean or a scale needs a floating-point "
                                "dtype, not ",
                                Name(call.dtype)));
  }
  if (IsFloat(call.dtype) && IsBitwise(call.op)) {
    return Invalid(call, StrCat(Name(call.op), " needs an integer dtype, not ",
                                Name(call.dtype)));
  }
  return Status();
}

Status ValidateCounts(const CollectiveCall& call,
                      const std::vector<std::size_t>& counts, int size,
                      const char* name) {
  if (counts.size() == static_cast<std::size_t>(size)) return Status();
  return Invalid(call,
                 StrCat(name, " holds ", counts.size(),
                        " counts, expected one for each of ", size, " ranks"));
}

// The extents must be ascending and disjoint, none of them empty, and add up to
// the call's count.
Status ValidateExtents(const CollectiveCall& call) {
  std::size_t sum = 0;
  std::size_t end = 0;
  for (const Extent& extent : call.extents) {
    if (extent.begin < end || extent.count == 0) {
      return Invalid(call, "extents must ascend and hold something");
    }
    end = extent.begin + extent.count;
    sum += extent.count;
  }
  if (call.extents.empty() || sum == call.count) return Status();
  return Invalid(
      call, StrCat("extents hold ", sum, " elements, count is ", call.count));
}

// Sizes in bytes must not overflow, whatever they are multiplied by later.
Status ValidateSize(const CollectiveCall& call, int ranks) {
  std::size_t most = call.count;
  for (const auto* counts : {&call.send_counts, &call.recv_counts}) {
    for (const std::size_t count : *counts) most = std::max(most, count);
  }
  const std::size_t limit = std::numeric_limits<std::size_t>::max() / 16 /
                            static_cast<std::size_t>(ranks);
  if (most <= limit) return Status();
  return Invalid(
      call, StrCat("a count of ", most, " elements, expected at most ", limit));
}
}  // namespace

Status ValidateAlgorithm(CollectiveKind kind,
                         const CollectiveAlgorithm* algorithm,
                         const CallGroup& group, Channel channel) {
  if (algorithm == nullptr) return Status();
  const auto table = AlgorithmsOf(kind);
  if (std::find(table.begin(), table.end(), algorithm) == table.end()) {
    return Status(StatusCode::kInvalidArgument,
                  StrCat("algorithm ", algorithm->name, " is none of ",
                         Name(kind), "'s"));
  }
  using Memory = CollectiveAlgorithm::Memory;
  const char* needs = nullptr;
  if (algorithm->memory == Memory::kMustShare && !group.SharesAll()) {
    needs = "needs ranks that all share memory";
  }
  if (algorithm->memory == Memory::kMustPlace && !group.PlacesAll(channel)) {
    needs = "needs ranks that can all write into each other's memory (RDMA)";
  }
  if (needs == nullptr) return Status();
  return Status(StatusCode::kInvalidArgument,
                StrCat(Name(kind), " algorithm ", algorithm->name, " ", needs,
                       "; use auto"));
}

Status ValidateAllToAll(const CollectiveCall& call, const CallGroup& group) {
  const std::size_t own = call.send_counts[group.rank];
  if (own != call.recv_counts[group.rank]) {
    return Invalid(
        call, StrCat("rank ", group.rank, " sends itself ", own,
                     " elements but expects ", call.recv_counts[group.rank]));
  }
  for (const auto* counts : {&call.send_counts, &call.recv_counts}) {
    for (const std::size_t count : *counts) {
      if (!call.equal_counts || count == own) continue;
      return Invalid(call, StrCat("equal counts are promised, but there are ",
                                  own, " and ", count));
    }
  }
  if (call.equal_counts || call.algorithm == nullptr ||
      !call.algorithm->equal_counts) {
    return Status();
  }
  return Invalid(
      call, StrCat("algorithm ", call.algorithm->name, " needs equal_counts"));
}

Status ValidateCall(const CollectiveCall& call, const CallGroup& group) {
  if (static_cast<int>(call.kind) >
      static_cast<int>(CollectiveKind::kBarrier)) {
    return Status(StatusCode::kInvalidArgument,
                  StrCat("unknown kind of collective: ", int(call.kind)));
  }
  GF_RETURN_IF_ERROR(ValidateTypes(call));
  if (call.root < 0 || call.root >= group.size) {
    return Invalid(
        call, StrCat("root ", call.root, ", expected 0 to ", group.size - 1));
  }
  if (call.kind == CollectiveKind::kAllToAll ||
      call.kind == CollectiveKind::kScatter) {
    GF_RETURN_IF_ERROR(
        ValidateCounts(call, call.send_counts, group.size, "send_counts"));
  }
  if (call.kind == CollectiveKind::kAllToAll ||
      call.kind == CollectiveKind::kGather || HasUnevenParts(call)) {
    GF_RETURN_IF_ERROR(
        ValidateCounts(call, call.recv_counts, group.size, "recv_counts"));
  }
  GF_RETURN_IF_ERROR(ValidateSize(call, group.size));
  if (call.kind == CollectiveKind::kAllToAll) {
    GF_RETURN_IF_ERROR(ValidateAllToAll(call, group));
  }
  GF_RETURN_IF_ERROR(
      ValidateAlgorithm(call.kind, call.algorithm, group, call.channel));
  GF_RETURN_IF_ERROR(ValidateExtents(call));
  if (call.feed != nullptr && (call.kind != CollectiveKind::kAllreduce ||
                               !IsGradientType(call.dtype))) {
    return Invalid(call,
                   StrCat("a feed is for an allreduce of ", GradientTypeNames(),
                          ", not of ", Name(call.dtype)));
  }
  const auto [input, output] = BuffersOf(call, group);
  if ((input > 0 && call.input == nullptr) ||
      (output > 0 && call.output == nullptr)) {
    return Invalid(call, "a buffer is null");
  }
  return Status();
}

}  // namespace gradientflow
