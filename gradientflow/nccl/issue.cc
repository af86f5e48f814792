#include "gradientflow/nccl/issue.h"

#include <cstddef>
#include <vector>

#include "gradientflow/collectives/call_plan.h"
#include "gradientflow/nccl/exchange.h"

namespace gradientflow {
namespace {

// The messages of a call. A message of a rank to itself is a copy.
struct Parts {
  const IssueTarget& target;
  DType type;
  std::size_t width;

  Status Send(const std::byte* data, std::size_t count, int peer) const {
    if (count == 0) return Status();
    const NcclComm& comm = *target.comm;
    return comm.Check("ncclSend",
                      comm.api().send(data, count, NcclType(type), peer,
                                      comm.get(), target.stream->native()));
  }
  Status Recv(std::byte* data, std::size_t count, int peer) const {
    if (count == 0) return Status();
    const NcclComm& comm = *target.comm;
    return comm.Check("ncclRecv",
                      comm.api().recv(data, count, NcclType(type), peer,
                                      comm.get(), target.stream->native()));
  }
  Status Copy(std::byte* dst, const std::byte* src, std::size_t count) const {
    if (count == 0 || dst == src) return Status();
    return target.stream->Copy(dst, src, count * width);
  }
};

// Sends every part of `data` to its rank. This rank's own part is copied to
// `own`.
Status SendParts(const Parts& parts, const std::byte* data,
                 const std::vector<std::size_t>& counts, std::byte* own) {
  for (int peer = 0; peer < parts.target.size; ++peer) {
    const std::size_t count = counts[static_cast<std::size_t>(peer)];
    GF_RETURN_IF_ERROR(peer == parts.target.rank
                           ? parts.Copy(own, data, count)
                           : parts.Send(data, count, peer));
    data += count * parts.width;
  }
  return Status();
}

// Receives every part of `data` from its rank. This rank's own part is copied
// from `own`, unless `own` is null.
Status RecvParts(const Parts& parts, std::byte* data,
                 const std::vector<std::size_t>& counts, const std::byte* own) {
  for (int peer = 0; peer < parts.target.size; ++peer) {
    const std::size_t count = counts[static_cast<std::size_t>(peer)];
    if (peer != parts.target.rank) {
      GF_RETURN_IF_ERROR(parts.Recv(data, count, peer));
    } else if (own != nullptr) {
      GF_RETURN_IF_ERROR(parts.Copy(data, own, count));
    }
    data += count * parts.width;
  }
  return Status();
}

// Returns where this rank's own part begins in what it receives.
std::byte* OwnPart(std::byte* data, const std::vector<std::size_t>& counts,
                   const Parts& parts) {
  for (int peer = 0; peer < parts.target.rank; ++peer) {
    data += counts[static_cast<std::size_t>(peer)] * parts.width;
  }
  return data;
}

Status QueueMessages(const CollectiveCall& call, const Parts& parts) {
  const auto* input = static_cast<const std::byte*>(call.input);
  auto* output = static_cast<std::byte*>(call.output);
  const int rank = parts.target.rank;
  const auto own = static_cast<std::size_t>(rank);
  switch (call.kind) {
    case CollectiveKind::kAllToAll:
      GF_RETURN_IF_ERROR(SendParts(parts, input, call.send_counts,
                                   OwnPart(output, call.recv_counts, parts)));
      return RecvParts(parts, output, call.recv_counts, nullptr);
    case CollectiveKind::kAllgather:
      for (int peer = 0; peer < parts.target.size; ++peer) {
        if (peer == rank) continue;
        GF_RETURN_IF_ERROR(parts.Send(input, call.recv_counts[own], peer));
      }
      return RecvParts(parts, output, call.recv_counts, input);
    case CollectiveKind::kGather:
      if (rank == call.root) {
        return RecvParts(parts, output, call.recv_counts, input);
      }
      return parts.Send(input, call.recv_counts[own], call.root);
    default:
      if (rank == call.root) {
        return SendParts(parts, input, call.send_counts, output);
      }
      return parts.Recv(output, call.send_counts[own], call.root);
  }
}

// Issues all messages of a call as one group, because each of them alone would
// wait for its peer.
Status SendAndRecv(const CollectiveCall& call, const IssueTarget& target) {
  const NcclComm& comm = *target.comm;
  GF_RETURN_IF_ERROR(comm.Check("ncclGroupStart", comm.api().group_start()));
  const Status queued =
      QueueMessages(call, {target, call.dtype, SizeOf(call.dtype)});
  const Status ended = comm.Check("ncclGroupEnd", comm.api().group_end());
  return queued.ok() ? ended : queued;
}

struct Reduction {
  const void* input;
  void* output;
  nccl::RedOp op;
};

Status Reduce(const NcclOperation& operation, const IssueTarget& target,
              const Reduction& r) {
  const CollectiveCall& call = operation.call;
  const NcclComm& comm = *target.comm;
  const NcclApi& api = comm.api();
  const nccl::DataType type = NcclType(operation.plan.type);
  void* stream = target.stream->native();
  switch (call.kind) {
    case CollectiveKind::kReduce:
      return comm.Check("ncclReduce",
                        api.reduce(r.input, r.output, call.count, type, r.op,
                                   call.root, comm.get(), stream));
    case CollectiveKind::kReduceScatter:
      return comm.Check("ncclReduceScatter",
                        api.reduce_scatter(r.input, r.output, call.count, type,
                                           r.op, comm.get(), stream));
    default:
      return comm.Check("ncclAllReduce",
                        api.all_reduce(r.input, r.output, call.count, type,
                                       r.op, comm.get(), stream));
  }
}

Status IssueReduction(const NcclOperation& operation,
                      const IssueTarget& target) {
  const CollectiveCall& call = operation.call;
  const NcclPlan& plan = operation.plan;
  Reduction r{call.input, call.output, plan.op};
  if (call.kind == CollectiveKind::kAllreduce) {
    auto* data = static_cast<std::byte*>(call.output);
    if (!call.extents.empty()) {
      data += call.extents[0].begin * SizeOf(call.dtype);
    }
    if (plan.staged) data = target.staging;
    r.input = r.output = data;
  }
  if (plan.premul != 1.0) {
    Result<nccl::RedOp> op = target.comm->PreMulSum(plan.type, plan.premul);
    if (!op.ok()) return op.status();
    r.op = op.value();
  }
  return Reduce(operation, target, r);
}

}  // namespace

Status Issue(const NcclOperation& operation, const IssueTarget& target) {
  const CollectiveCall& call = operation.call;
  const NcclComm& comm = *target.comm;
  const NcclApi& api = comm.api();
  const nccl::DataType type = NcclType(call.dtype);
  void* stream = target.stream->native();
  switch (call.kind) {
    case CollectiveKind::kAllreduce:
    case CollectiveKind::kReduce:
    case CollectiveKind::kReduceScatter:
      return operation.plan.exchange ? IssueParts(operation, target)
                                     : IssueReduction(operation, target);
    case CollectiveKind::kBroadcast:
      return comm.Check("ncclBroadcast",
                        api.broadcast(call.output, call.output, call.count,
                                      type, call.root, comm.get(), stream));
    case CollectiveKind::kAllgather:
      if (HasUnevenParts(call)) return SendAndRecv(call, target);
      return comm.Check("ncclAllGather",
                        api.all_gather(call.input, call.output, call.count,
                                       type, comm.get(), stream));
    case CollectiveKind::kBarrier:
      return comm.Check("ncclAllReduce",
                        api.all_reduce(target.barrier, target.barrier, 1,
                                       nccl::DataType::kInt32,
                                       nccl::RedOp::kSum, comm.get(), stream));
    default:
      return SendAndRecv(call, target);
  }
}

}  // namespace gradientflow
