#pragma once

#include "gradientflow/base/status.h"
#include "gradientflow/device/device.h"
#include "gradientflow/nccl/nccl_comm.h"
#include "gradientflow/nccl/operation.h"

namespace gradientflow {

// Where the work of a call goes.
struct IssueTarget {
  Stream* stream;
  NcclComm* comm;
  int rank;
  int size;
  std::byte* staging;  // Device memory, for plan.staged.
  std::byte* barrier;  // Device memory: 4 bytes without a meaning.
};

// Gives the call to NCCL, which may not be finished with it when this returns.
// REQUIRES target.comm->Ready(), and a call that has something to do.
Status Issue(const NcclOperation& operation, const IssueTarget& target);

}  // namespace gradientflow
