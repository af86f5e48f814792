#pragma once

#include <cstdint>
#include <string_view>

#include "gradientflow/base/clock.h"

namespace gradientflow {

// One bar of the timeline: what `lane` did from `begin` to `end`.
struct Span {
  // Static storage: "backward", "wait", "bucket", "collective" or "kernel".
  std::string_view lane;
  std::string_view name;  // Static storage; "" means the lane's.
  std::uint64_t step = 0;
  std::uint64_t id = 0;  // Bucket or collective number, tensor, chunk.
  std::uint64_t bytes = 0;
  Clock::Time begin{};
  Clock::Time end{};
};

// Where spans go. Thread-safe; never blocks, and never allocates on the thread
// of the caller. There is no global recorder: the communicator owns one and
// lends it.
class Recorder {
 public:
  virtual ~Recorder() = default;
  virtual void Record(const Span& span) noexcept = 0;
};

}  // namespace gradientflow
