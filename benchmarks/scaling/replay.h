#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "benchmarks/scaling/gradients.h"
#include "benchmarks/scaling/model.h"
#include "gradientflow/base/buffer.h"
#include "gradientflow/base/clock.h"
#include "gradientflow/device/device.h"

namespace gradientflow::benchmarks {

// Returns at `moment` of SteadyClock, or at once if it has passed. It sleeps,
// and spins for the last few microseconds, so that a modelled GPU takes no core
// from the communication and is still on time.
void WaitUntil(Clock::Time moment);

// The parts of one rank. Everything that is borrowed outlives the
// ReplayBackward.
struct ReplayParts {
  const Model* model = nullptr;
  const Gradients* gradients = nullptr;
  BufferView pool = {};
  int rank = 0;
  bool accumulate = false;  // Gradients are added to the pool's; no device.
  // If the pool is in the memory of a device: that device, and the offsets of
  // the tensors in the pool, in bytes.
  std::shared_ptr<Device> device = nullptr;
  std::vector<std::size_t> offsets = {};
  std::function<void(Clock::Time)> wait_until = &WaitUntil;
};

// Backward as the model's GPU would do it: gradients are written to the pool of
// a session, and ready(i) is called when tensor i's gradient would be complete.
// Prepare() has written the gradients beforehand: into the pool or, with a
// device, beside it, and then they are copied on a stream when their time
// comes. One thread calls, for one step after the other:
//   Prepare(), Run(), Read()
// A device's errors are thrown (must.h).
class ReplayBackward {
 public:
  explicit ReplayBackward(ReplayParts parts);

  // Makes the gradients of `step`.
  void Prepare(std::uint64_t step);
  // Calls ready(i) for every tensor, from the last to the first.
  void Run(Clock::Time begin, const std::function<void(std::size_t)>& ready);
  // When the modelled GPU would have finished the last Run(), even if the run
  // was late because no core was free.
  Clock::Time End() const;
  // Returns the pool in host memory, valid until the next call.
  ConstBufferView Read();

  // The stream that gradients are computed on (cudaStream_t); null: no device.
  void* native_stream() const;

 private:
  const ReplayParts parts_;
  std::unique_ptr<Stream> stream_;
  DeviceMemory host_;      // Page-locked, as large as the pool.
  DeviceMemory prepared_;  // On the device, as large as the pool.
  Clock::Time begin_{};
};

}  // namespace gradientflow::benchmarks
