#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "gradientflow/buckets/bucket_plan.h"
#include "gradientflow/device/device.h"
#include "gradientflow/nccl/nccl_api.h"
#include "gradientflow/nccl/nccl_comm.h"
#include "gradientflow/session.h"

namespace gradientflow::benchmarks {

// What a program without this library would do: one ncclAllReduce per bucket of
// the session's pool, on one stream, and a wait for that stream. NOT
// thread-safe.
class BareNccl {
 public:
  // All ranks call it together. They meet over the session, whose pool is in
  // the memory of `device`.
  static Result<std::unique_ptr<BareNccl>> Create(GradientSession& session,
                                                  Device& device,
                                                  std::vector<Bucket> buckets);
  ~BareNccl();
  BareNccl(const BareNccl&) = delete;
  BareNccl& operator=(const BareNccl&) = delete;

  // The mean over the ranks, in place, complete when this returns.
  Status Step();

 private:
  BareNccl(GradientSession& session, Device& device,
           std::shared_ptr<const NcclApi> api, std::vector<Bucket> buckets);
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
