#pragma once

#include <cstddef>
#include <cstring>
#include <functional>
#include <memory>
#include <string>

#include "gradientflow/base/clock.h"
#include "gradientflow/base/status.h"
#include "gradientflow/device/device.h"
#include "gradientflow/nccl/nccl_api.h"
#include "gradientflow/nccl/plan.h"
#include "gradientflow/observe/logger.h"
#include "gradientflow/observe/recorder.h"

namespace gradientflow {

// What a rank brings to its NCCL collectives. Pointers are borrowed and outlive
// the collectives.
struct NcclArgs {
  std::shared_ptr<const NcclApi> api;  // From LoadNccl().
  int rank = 0;
  int size = 1;
  Device* device = nullptr;  // Made current for every call of NCCL.
  const Clock* clock = nullptr;
  Recorder* recorder = nullptr;  // May be null.
  Logger* logger = nullptr;      // May be null.
  bool trace = false;            // One line per collective.

  // Gives rank 0's `bytes` bytes to all ranks, by other means than NCCL.
  // Create() calls it once on every rank.
  std::function<Status(void* data, std::size_t bytes)> broadcast;
  // Returns, on all ranks alike, whether every rank says yes, by other means
  // than NCCL. Create() calls it at most once on every rank. If null, a rank
  // that cannot make a window does not open.
  std::function<Result<bool>(bool mine)> all_agree;
  // Returns the ranks that are known to be gone, or that are awaited, for
  // messages: "rank 2 does not answer"; empty if there are none. May be null.
  std::function<std::string()> culprits;
  // Called again and again while Create() or the destructor waits. Keeps
  // heartbeats going, and should block for a moment. An error ends the wait. If
  // null, the thread yields instead.
  std::function<Status()> while_waiting;
  // Called again and again while a call that needs all ranks is under way and
  // none has ended for standing_seconds. May call Fail(). May be null.
  std::function<void()> on_standing;

  double init_seconds = 120;     // For all ranks to come to Create().
  double timeout_seconds = 600;  // Without any call ending; 0: for ever.
  double standing_seconds = 2;
  double close_seconds = 5;    // To close in good order; then it is aborted.
  double abort_seconds = 5;    // For NCCL to give the buffers back.
  double culprit_seconds = 2;  // For `culprits` to say who broke NCCL.
  // How long a call waits until NCCL has accepted what other communicators
  // began earlier on the device; see LaunchOrder. If ranks start their
  // calls in one order, this must exceed the time by which one comes after
  // another. If they start them in different orders, they lose this time
  // whenever NCCL connects.
  double turn_seconds = 2;

  // Which side adds up 16-bit elements of more than two ranks. The same on all
  // ranks.
  NcclSums sums = NcclSums::kFloat32;
  // Make the first staging memory a symmetric window, if NCCL supports that and
  // has memory for it on all ranks. The same on all ranks.
  bool windows = true;
  // Staging memory on the device for allreduces that convert or have gaps, and
  // for sums that we add up ourselves, in bytes per channel. It is allocated
  // and registered from the start, and grows when needed.
  std::size_t staging_bytes = 0;
};

}  // namespace gradientflow
