#include "benchmarks/gpu/bare_nccl.h"

#include <utility>

#include "gradientflow/nccl/abi.h"

namespace gradientflow::benchmarks {

BareNccl::BareNccl(GradientSession& session, Device& device,
                   std::shared_ptr<const NcclApi> api,
                   std::vector<Bucket> buckets)
    : device_(device),
      pool_(session.pool()),
      dtype_(session.options().pool_dtype),
      buckets_(std::move(buckets)),
      comm_(std::move(api), session.rank(), session.size()) {}

Result<std::unique_ptr<BareNccl>> BareNccl::Create(
    GradientSession& session, Device& device, std::vector<Bucket> buckets) {
  auto api = LoadNccl(session.options().nccl_library);
  if (!api.ok()) return api.status();
  std::unique_ptr<BareNccl> made(
      new BareNccl(session, device, api.value(), std::move(buckets)));
  Result<std::unique_ptr<Stream>> stream = device.NewStream(/*urgent=*/false);
  if (!stream.ok()) return stream.status();
  made->stream_ = std::move(stream).value();
  nccl::UniqueId id = {};
  if (session.rank() == 0) {
    GF_RETURN_IF_ERROR(
        made->comm_.Check("ncclGetUniqueId", api.value()->get_unique_id(&id)));
  }
  CollectiveCall call;
  call.kind = CollectiveKind::kBroadcast;
  call.output = id.bytes;
  call.count = sizeof(id.bytes);
  call.dtype = call.wire = DType::kInt8;
  GF_RETURN_IF_ERROR(session.communicator().Run(call));
  const Status begun = device.RunCurrent([&]() -> Status {
    GF_RETURN_IF_ERROR(made->comm_.Begin(id));
    return made->Await();
  });
  if (!begun.ok()) return begun;
  return made;
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

Status BareNccl::Step() {
  return device_.RunCurrent([this] { return Allreduce(); });
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
