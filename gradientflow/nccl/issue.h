#pragma once

#include <cstddef>

#include "gradientflow/base/status.h"
#include "gradientflow/device/device.h"
#include "gradientflow/nccl/nccl_comm.h"
#include "gradientflow/nccl/operation.h"

namespace gradientflow {

// Where the work of a call goes. All are borrowed.
struct IssueTarget {
  Stream* stream;
  NcclComm* comm;
  int rank;
  int size;
  // Device memory, for plan.staged and plan.exchange; null if the call has
  // neither.
  std::byte* staging;
  // Device memory of 4 bytes. Nobody reads what they hold: NCCL has no barrier,
  // so ranks add them up.
  std::byte* barrier;
};

// Gives the call to NCCL, which may not be finished with it when this returns.
// REQUIRES target.comm->Ready(), and a call that has something to do.
Status Issue(const NcclOperation& operation, const IssueTarget& target);

}  // namespace gradientflow
