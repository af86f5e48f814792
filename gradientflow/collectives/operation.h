#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "gradientflow/base/clock.h"
#include "gradientflow/base/done.h"
#include "gradientflow/collectives/call_plan.h"
#include "gradientflow/collectives/collective.h"
#include "gradientflow/collectives/elements.h"
#include "gradientflow/collectives/placed_layout.h"
#include "transports/remote_writes.h"

namespace gradientflow {

// A call in flight: what its segments have in common.
struct Operation {
  CollectiveCall call;
  const CallGroup* group = nullptr;
  CallPlan plan;
  Done done;
  std::uint64_t sequence = 0;  // Within its channel; the same on all ranks.
  std::uint64_t signature = 0;
  kernels::ReduceOp op = kernels::ReduceOp::kSum;
  // The factor of a mean, before the sum (pre) or after it (post).
  float pre = 1.0F;
  float post = 1.0F;
  // Factor after the result is rounded to the wire dtype; 1 if nothing
  // converts.
  float unscale = 1.0F;
  // Factor of a float64 result. The kernels take float32 factors, which would
  // cost half of its digits.
  double last = 1.0;
  std::vector<std::size_t> extent_starts;
  Elements data;
  Elements input;
  std::uint64_t launched = 0;  // Number of segments.
  std::uint64_t finished = 0;
  std::uint64_t messages = 0;
  std::uint64_t* bytes_sent = nullptr;  // The counter of its group and channel.
  // The window of slots (placed_layout.h) in which its messages are placed, or
  // kNoWindow. A call keeps it, whatever becomes of its group's places.
  int window = kNoWindow;
  std::uint32_t flags = 0;  // Only kFlagNonfinite.
  std::byte barrier{};      // The element that a barrier moves.
  Clock::Time begin{};
  RemoteWrites written_before;  // For the trace.

  // Computes from `call` and `group` what contributions and result are
  // multiplied by.
  void SetFactors();
  // Computes from `call` where the elements are. A barrier moves one element of
  // its own.
  void SetMemory();
  // Multiplies the result, which has ended, by `last`.
  void ScaleResult() const;

  // Grows as long as the call makes progress.
  std::uint64_t advances() const { return messages + finished; }
  bool converts() const { return call.wire != call.dtype; }
  // The part that the next segment takes, in packed elements of the call.
  // REQUIRES launched < plan.segments.
  Extent NextPart() const { return plan.Part(launched); }
  bool NextPartIsThere() const {
    const Extent part = NextPart();
    return call.feed == nullptr ||
           part.begin + part.count <= call.feed->available();
  }
  std::size_t element_bytes() const { return SizeOf(call.dtype); }
  std::size_t wire_bytes() const { return SizeOf(call.wire); }
};

}  // namespace gradientflow
