#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "gradientflow/base/clock.h"
#include "gradientflow/base/done.h"
#include "gradientflow/collectives/call_plan.h"
#include "gradientflow/collectives/collective.h"
#include "gradientflow/collectives/elements.h"

namespace gradientflow {

// A call on its way: what its segments share.
struct Operation {
  CollectiveCall call;
  const CallGroup* group = nullptr;
  CallPlan plan;
  Done done;
  std::uint64_t sequence = 0;  // In its channel; the same on all ranks.
  std::uint64_t signature = 0;
  kernels::ReduceOp op = kernels::ReduceOp::kSum;
  // A mean is scaled before the sum (pre) or after it (post).
  float pre = 1.0F;
  float post = 1.0F;
  // After the result was rounded to the wire; 1 where nothing converts.
  float unscale = 1.0F;
  // Factor of a float64 result: kernels take float32 factors, which would
  // cost half of its digits.
  double last = 1.0;
  std::vector<std::size_t> extent_starts;
  Elements data;
  Elements input;
  std::uint64_t launched = 0;  // Segments.
  std::uint64_t finished = 0;
  std::uint64_t messages = 0;
  std::uint64_t* bytes_sent = nullptr;  // The count of its group and channel.
  std::uint32_t flags = 0;              // kFlagNonfinite.
  std::byte barrier{};                  // The one element a barrier moves.
  Clock::Time begin{};

  // From `call` and `group`: what the contributions and the result are
  // multiplied with.
  void SetFactors();
  // From `call`: where the elements are. A barrier moves one of its own.
  void SetMemory();

  // Grows while it gets on.
  std::uint64_t advances() const { return messages + finished; }
  bool converts() const { return call.wire != call.dtype; }
  // What the next segment takes, in elements of the call, packed.
  // REQUIRES launched < plan.segments.
  Extent NextPart() const {
    const std::size_t first = launched * plan.segment_elements;
    return {first, std::min(plan.segment_elements, plan.count - first)};
  }
  bool NextPartIsThere() const {
    const Extent part = NextPart();
    return call.feed == nullptr ||
           part.begin + part.count <= call.feed->available();
  }
  std::size_t element_bytes() const { return SizeOf(call.dtype); }
  std::size_t wire_bytes() const { return SizeOf(call.wire); }
};

}  // namespace gradientflow
