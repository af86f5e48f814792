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

// What the pass after a reduction found. Zeroed before the pass.
struct Finding {
  std::uint32_t nonfinite;
};

// What a call needs besides its buffers, from its issue to its end.
struct NcclSlot {
  std::unique_ptr<Event> end;  // Recorded after the last work of the call.
  Finding* device = nullptr;
  Finding* host = nullptr;  // Pinned; a copy of the device's.
};

// A call in flight in a queue. Used again and again.
struct NcclOperation {
  CollectiveCall call;
  NcclPlan plan;
  Done done;
  std::uint64_t sequence = 0;  // Within its channel; the same on all ranks.
  Clock::Time begin{};
  // Null if the device has nothing to do, or the host nothing to ask it.
  NcclSlot* slot = nullptr;
  std::byte* staging = nullptr;   // Its part of the staging memory, or null,
  Event* staging_free = nullptr;  // to be recorded when the part is free.
  bool spreading = false;  // With plan.exchange: it is in its last phase.
  bool settled = false;    // All work and slot->end are on the stream.

  // Whether the caller goes on without waiting for the result.
  bool ahead() const { return call.submitted.run != nullptr; }
  // The word in device memory that becomes 1 if a result is not finite; null if
  // nobody looks.
  std::uint32_t* nonfinite() const {
    if (!plan.look) return nullptr;
    return ahead() ? call.nonfinite : &slot->device->nonfinite;
  }

  // Calls f(pointer, count, elements before) for each run of the elements of
  // `output` that take part, until f returns an error.
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
