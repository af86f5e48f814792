#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>

#include "gradientflow/base/buffer.h"
#include "gradientflow/base/clock.h"
#include "gradientflow/base/status.h"

namespace gradientflow::benchmarks {

// Where the time between two gradients goes, and how gradients come into the
// pool of a session: replayed on a timer (replay.h), or real work on a GPU
// (gemm_backward.h). One step after the other:
//   Prepare(), Run(), End() in any order with the session's FinishStep(),
//   Read()
// One thread.
class Backward {
 public:
  virtual ~Backward() = default;

  // Makes the gradients of `step`. Nothing of it belongs to the time taken.
  virtual Status Prepare(std::uint64_t step) = 0;

  // Backward from `begin` on: calls ready(i) for every tensor, in the order of
  // Model::ReadyOrder(). Where a device does the work it may not be done yet
  // when this returns.
  virtual Status Run(Clock::Time begin,
                     const std::function<void(std::size_t)>& ready) = 0;

  // When the last gradient was complete, of the last Run(). Blocks until then.
  virtual Result<Clock::Time> End() = 0;

  // The pool in the memory of the host, until the next call.
  virtual Result<ConstBufferView> Read() = 0;

  // How long a Run() takes with no communication; nothing where that must be
  // measured.
  virtual std::optional<double> seconds_alone() const = 0;
};

}  // namespace gradientflow::benchmarks
