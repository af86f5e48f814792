#include "gradientflow/nccl/exchange.h"

#include <algorithm>
#include <cstdint>

#include "kernels/kernels.h"

// The elements of a call, for p ranks:
//
//   block 0 | block 1 | ... | block p - 1 | tail
//
// Rank r adds up block r. The tail is what is left over, less than p packs; and
// everything, if there is one phase. It is added up by every rank that wants
// the result. The staging memory holds the caller's elements if plan.staged,
// and a slot per rank for what that rank sends: its elements of this rank's
// block, then its tail.
namespace gradientflow {
namespace {

// Everything below begins at such addresses, as vector loads like it.
constexpr std::size_t kAlignBytes = 256;

std::size_t AlignUp(std::size_t n, std::size_t unit) {
  return (n + unit - 1) / unit * unit;
}

// Where things are. In bytes, except for the counts.
struct Layout {
  std::size_t block;   // Elements.
  std::size_t tail;    // Elements.
  std::size_t slot;    // Elements from one slot to the next.
  std::size_t packed;  // Bytes at the beginning of the staging memory.
  std::size_t slots;   // Bytes of all slots.
};

Layout LayoutOf(const NcclOperation& operation, int size) {
  const CollectiveCall& call = operation.call;
  const std::size_t width = SizeOf(operation.plan.type);
  const auto ranks = static_cast<std::size_t>(size);
  Layout layout = {};
  layout.block = operation.plan.block;
  layout.tail = call.kind == CollectiveKind::kReduceScatter
                    ? 0
                    : call.count - ranks * layout.block;
  // An allgather leaves no gaps between its parts.
  layout.slot = layout.block == 0
                    ? layout.tail
                    : AlignUp(layout.block + layout.tail, kAlignBytes / width);
  if (operation.plan.staged) {
    layout.packed = AlignUp(call.count * width, kAlignBytes);
  }
  layout.slots = AlignUp(ranks * layout.slot * width, kAlignBytes);
  return layout;
}

// What the functions below have in common.
struct Exchange {
  const NcclOperation& operation;
  const IssueTarget& target;
  Layout layout;
  std::size_t width;

  Exchange(const NcclOperation& o, const IssueTarget& t)
      : operation(o),
        target(t),
        layout(LayoutOf(o, t.size)),
        width(SizeOf(o.plan.type)) {}

  const CollectiveCall& call() const { return operation.call; }
  bool to_root() const { return call().kind == CollectiveKind::kReduce; }
  bool wants_tail() const { return !to_root() || target.rank == call().root; }

  // This rank's elements of the call.
  const std::byte* mine() const {
    if (operation.plan.staged) return target.staging;
    if (call().kind == CollectiveKind::kAllreduce) return result();
    return static_cast<const std::byte*>(call().input);
  }
  // Where the sums of all elements go, on ranks that want them.
  std::byte* result() const {
    if (operation.plan.staged) return target.staging;
    auto* data = static_cast<std::byte*>(call().output);
    if (!call().extents.empty()) data += call().extents[0].begin * width;
    return data;
  }
  std::byte* slot(int rank) const {
    return target.staging + layout.packed +
           static_cast<std::size_t>(rank) * layout.slot * width;
  }
  std::size_t block_at(int rank) const {
    return static_cast<std::size_t>(rank) * layout.block * width;
  }
  std::size_t tail_at() const { return block_at(target.size); }
  // Where this rank's block goes once it is added up.
  std::byte* sums() const {
    if (call().kind == CollectiveKind::kReduceScatter) {
      return static_cast<std::byte*>(call().output);
    }
    if (wants_tail()) return result() + block_at(target.rank);
    return slot(target.rank);
  }

  Status Send(const std::byte* data, std::size_t count, int peer) const {
    if (count == 0) return Status();
    const NcclComm& comm = *target.comm;
    return comm.Check(
        "ncclSend", comm.api().send(data, count, NcclType(operation.plan.type),
                                    peer, comm.get(), target.stream->native()));
  }
  Status Recv(std::byte* data, std::size_t count, int peer) const {
    if (count == 0) return Status();
    const NcclComm& comm = *target.comm;
    return comm.Check(
        "ncclRecv", comm.api().recv(data, count, NcclType(operation.plan.type),
                                    peer, comm.get(), target.stream->native()));
  }
  Status Gather(const std::byte* from, std::byte* to, std::size_t count) const {
    const NcclComm& comm = *target.comm;
    return comm.Check(
        "ncclAllGather",
        comm.api().all_gather(from, to, count, NcclType(operation.plan.type),
                              comm.get(), target.stream->native()));
  }

  Status SwapParts() const {
    for (int peer = 0; peer < target.size; ++peer) {
      if (peer == target.rank) continue;
      GF_RETURN_IF_ERROR(Send(mine() + block_at(peer), layout.block, peer));
      GF_RETURN_IF_ERROR(Recv(slot(peer), layout.block, peer));
      if (!to_root() || peer == call().root) {
        GF_RETURN_IF_ERROR(Send(mine() + tail_at(), layout.tail, peer));
      }
      if (wants_tail()) {
        GF_RETURN_IF_ERROR(
            Recv(slot(peer) + layout.block * width, layout.tail, peer));
      }
    }
    return Status();
  }

  Status SpreadSums() const {
    if (to_root()) {
      if (target.rank != call().root) {
        return Send(sums(), layout.block, call().root);
      }
      for (int peer = 0; peer < target.size; ++peer) {
        if (peer == target.rank) continue;
        GF_RETURN_IF_ERROR(Recv(result() + block_at(peer), layout.block, peer));
      }
      return Status();
    }
    GF_RETURN_IF_ERROR(Gather(sums(), result(), layout.block));
    if (!operation.plan.look_at_sums) return Status();
    // Nobody else has looked at this rank's block.
    std::uint32_t* found = operation.nonfinite();
    const NcclComm& comm = *target.comm;
    return comm.Check(
        "ncclAllReduce",
        comm.api().all_reduce(found, found, 1, nccl::DataType::kInt32,
                              nccl::RedOp::kMax, comm.get(),
                              target.stream->native()));
  }
};

// One run of elements that are added up.
struct Run {
  const std::byte* own;  // This rank's elements.
  std::size_t in_slot;   // Where the others' are in their slots, in bytes.
  std::byte* to;
  std::size_t count;
};

// Adds up runs of as many sources as one launch takes. Partial sums of more
// than that stay in float32, in the memory behind the slots.
class Adder {
 public:
  Adder(const Exchange& exchange, const Device& device)
      : e_(exchange), device_(device), stream_(e_.target.stream->native()) {}

  Status Add(const Run& run) const {
    if (run.count == 0) return Status();
    if (e_.target.size <= kernels::kMaxParties) return AddAtOnce(run);
    return AddInTurns(run);
  }

 private:
  std::uint32_t* nonfinite() const {
    return e_.operation.plan.look_at_sums ? e_.operation.nonfinite() : nullptr;
  }
  const std::byte* Source(const Run& run, int rank) const {
    const bool gathered = e_.layout.block == 0 && !e_.to_root() &&
                          e_.call().kind == CollectiveKind::kAllreduce;
    if (rank == e_.target.rank && !gathered) return run.own;
    return e_.slot(rank) + run.in_slot;
  }
  Status Launched(int error) const {
    return device_.KernelStatus("reduce_many", error);
  }

  Status AddAtOnce(const Run& run) const {
    const DType type = e_.operation.plan.type;
    const void* sources[kernels::kMaxParties];
    for (int r = 0; r < e_.target.size; ++r) sources[r] = Source(run, r);
    void* to = run.to;
    return Launched(device_.kernels().reduce_many(
        {sources, e_.target.size, -1, type, &to, 1, type, type, run.count,
         kernels::ReduceOp::kSum, e_.operation.plan.sum_scale, nonfinite()},
        stream_));
  }

  Status AddInTurns(const Run& run) const {
    const DType type = e_.operation.plan.type;
    void* wide = e_.slot(0) + e_.layout.slots;
    for (int next = 0; next < e_.target.size;) {
      const void* sources[kernels::kMaxParties];
      int count = 0;
      const int own = next == 0 ? -1 : 0;
      if (own == 0) sources[count++] = wide;
      while (next < e_.target.size && count < kernels::kMaxParties) {
        sources[count++] = Source(run, next++);
      }
      GF_RETURN_IF_ERROR(Launched(device_.kernels().reduce_many(
          {sources, count, own, type, &wide, 1, DType::kFloat32,
           DType::kFloat32, run.count, kernels::ReduceOp::kSum, 1.0F, nullptr},
          stream_)));
    }
    return device_.KernelStatus(
        "convert", device_.kernels().convert(
                       {wide, DType::kFloat32, run.to, type, nullptr, run.count,
                        e_.operation.plan.sum_scale, nonfinite()},
                       stream_));
  }

  const Exchange& e_;
  const Device& device_;
  void* const stream_;
};

// Gives NCCL what `queue` queues, as one group.
template <typename F>
Status InGroup(const NcclComm& comm, F queue) {
  GF_RETURN_IF_ERROR(comm.Check("ncclGroupStart", comm.api().group_start()));
  const Status queued = queue();
  const Status ended = comm.Check("ncclGroupEnd", comm.api().group_end());
  return queued.ok() ? ended : queued;
}

}  // namespace

Status IssueParts(const NcclOperation& operation, const IssueTarget& target) {
  const Exchange e(operation, target);
  if (e.layout.block == 0 &&
      operation.call.kind == CollectiveKind::kAllreduce) {
    return e.Gather(e.mine(), e.slot(0), e.layout.tail);
  }
  return InGroup(*target.comm, [&] { return e.SwapParts(); });
}

Status SubmitSums(const NcclOperation& operation, const Device& device,
                  const IssueTarget& target) {
  const Exchange e(operation, target);
  const Adder adder(e, device);
  GF_RETURN_IF_ERROR(adder.Add(
      {e.mine() + e.block_at(target.rank), 0, e.sums(), e.layout.block}));
  if (!e.wants_tail()) return Status();
  return adder.Add({e.mine() + e.tail_at(), e.layout.block * e.width,
                    e.result() + e.tail_at(), e.layout.tail});
}

bool Spreads(const NcclOperation& operation) {
  return operation.plan.block > 0 &&
         operation.call.kind != CollectiveKind::kReduceScatter;
}

Status IssueSpread(const NcclOperation& operation, const IssueTarget& target) {
  const Exchange e(operation, target);
  return InGroup(*target.comm, [&] { return e.SpreadSums(); });
}

std::size_t ExchangeStagingBytes(const NcclOperation& operation, int size) {
  const Layout layout = LayoutOf(operation, size);
  const std::size_t wide =
      size > kernels::kMaxParties
          ? std::max(layout.block, layout.tail) * sizeof(float)
          : 0;
  return layout.packed + layout.slots + wide;
}

}  // namespace gradientflow
