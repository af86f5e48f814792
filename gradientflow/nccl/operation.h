#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "gradientflow/base/clock.h"
#include "gradientflow/base/done.h"
#include "gradientflow/collectives/collective.h"
#include "gradientflow/device/device.h"
#include "gradientflow/nccl/plan.h"

namespace gradientflow {

// What the pass after a reduction found; zeroed before it.
struct Verdict {
  std::uint32_t nonfinite;
};

// What a call needs besides its buffers, from its issue to its end.
struct NcclSlot {
  std::unique_ptr<Event> end;  // Behind the last work of the call.
  Verdict* device = nullptr;
  Verdict* host = nullptr;  // Pinned; the device's is copied here.
};

// A call on its way through a lane. Used again and again.
struct NcclOperation {
  CollectiveCall call;
  NcclPlan plan;
  Done done;
  std::uint64_t sequence = 0;  // In its channel; the same on all ranks.
  Clock::Time begin{};
  NcclSlot* slot = nullptr;  // Null: nothing for the device to do.
  bool settled = false;      // All work is on the stream, slot->end behind it.

  // f(pointer, count, elements before) for each run of the elements of `output`
  // that take part, until it fails.
  template <typename F>
  Status ForEachRun(F f) const {
    auto* output = static_cast<std::byte*>(call.output);
    if (call.extents.empty()) return f(output, call.count, std::size_t{0});
    std::size_t before = 0;
    for (const Extent& extent : call.extents) {
      GF_RETURN_IF_ERROR(
          f(output + extent.begin * SizeOf(call.dtype), extent.count, before));
      before += extent.count;
    }
    return Status();
  }
};

}  // namespace gradientflow
