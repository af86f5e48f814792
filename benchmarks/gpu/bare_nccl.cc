#include "benchmarks/gpu/bare_nccl.h"

#include <utility>

#include "gradientflow/nccl/abi.h"

namespace gradientflow::benchmarks {

BareNccl::BareNccl(GradientSession& session, Device& device,
                   std::vector<Bucket> buckets)
    : device_(device),
      pool_(session.pool()),
      dtype_(session.options().pool_dtype),
      buckets_(std::move(buckets)),
      stream_(Must(device.NewStream(/*urgent=*/false))),
      comm_(Must(LoadNccl(session.options().nccl_library)), session.rank(),
            session.size()) {
  Must(device.RunCurrent([&] { return Begin(session); }));
}

Status BareNccl::Begin(GradientSession& session) {
  nccl::UniqueId id = {};
  if (session.rank() == 0) {
    GF_RETURN_IF_ERROR(
        comm_.Check("ncclGetUniqueId", comm_.api().get_unique_id(&id)));
  }
  CollectiveCall call;
  call.kind = CollectiveKind::kBroadcast;
  call.output = id.bytes;
  call.count = sizeof(id.bytes);
  call.dtype = call.wire = DType::kInt8;
  GF_RETURN_IF_ERROR(session.communicator().Run(call));
  GF_RETURN_IF_ERROR(comm_.Begin(id));
  return Await();
}

BareNccl::~BareNccl() {
  if (comm_.get() == nullptr) return;
  static_cast<void>(device_.RunCurrent([this]() -> Status {
    GF_RETURN_IF_ERROR(comm_.Finalize());
    GF_RETURN_IF_ERROR(Await());
    comm_.Destroy();
    return Status();
  }));
}

Status BareNccl::Await() {
  while (true) {
    const Result<bool> ready = comm_.Ready();
    if (!ready.ok()) return ready.status();
    if (ready.value()) return Status();
  }
}

Status BareNccl::Allreduce() {
  for (const Bucket& bucket : buckets_) {
    for (const Extent& extent : bucket.extents) {
      std::byte* data = pool_.data + extent.begin * SizeOf(dtype_);
      GF_RETURN_IF_ERROR(comm_.Check(
          "ncclAllReduce",
          comm_.api().all_reduce(data, data, extent.count, NcclType(dtype_),
                                 nccl::RedOp::kAvg, comm_.get(),
                                 stream_->native())));
      GF_RETURN_IF_ERROR(Await());
    }
  }
  return stream_->Synchronize();
}

}  // namespace gradientflow::benchmarks
