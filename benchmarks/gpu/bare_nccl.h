#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "benchmarks/lib/must.h"
#include "gradientflow/buckets/bucket_plan.h"
#include "gradientflow/device/device.h"
#include "gradientflow/nccl/nccl_api.h"
#include "gradientflow/nccl/nccl_comm.h"
#include "gradientflow/session.h"

namespace gradientflow::benchmarks {

// What a program without this library would do: one ncclAllReduce per bucket of
// the session's pool, on one stream, and a wait for that stream. Errors
// are thrown (lib/must.h). NOT thread-safe.
class BareNccl {
 public:
  // All ranks call it together. They meet over the session, whose pool is in
  // the memory of `device`.
  BareNccl(GradientSession& session, Device& device,
           std::vector<Bucket> buckets);
  ~BareNccl();
  BareNccl(const BareNccl&) = delete;
  BareNccl& operator=(const BareNccl&) = delete;

  // The mean over the ranks, in place, complete when this returns.
  void Step() {
    Must(device_.RunCurrent([this] { return Allreduce(); }));
  }

 private:
  Status Begin(GradientSession& session);
  Status Await();
  Status Allreduce();

  Device& device_;
  const BufferView pool_;
  const DType dtype_;
  const std::vector<Bucket> buckets_;
  std::unique_ptr<Stream> stream_;
  NcclComm comm_;
};

}  // namespace gradientflow::benchmarks
