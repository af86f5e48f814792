#pragma once

#include <cstdint>
#include <memory>

#include "gradientflow/base/clock.h"
#include "gradientflow/base/looks.h"
#include "gradientflow/base/status.h"
#include "gradientflow/device/device.h"

namespace gradientflow {

// The end of a step on a device: whether its sums are finite, and an event
// after which the host has a copy of that. NOT thread-safe.
class StepEnd {
 public:
  // Both are borrowed and outlive the result.
  static Result<std::unique_ptr<StepEnd>> Create(Device* device,
                                                 Stream* stream);
  // Waits until the device no longer uses the memory.
  ~StepEnd();

  // A step begins, or begins again if nothing of it was submitted. The flag of
  // the step before stays, because an update may still read it.
  Status Begin();
  // The flag of this step, in the device's memory: set it to 1 in the order of
  // the stream if something is not finite.
  std::uint32_t* nonfinite() const {
    return reinterpret_cast<std::uint32_t*>(flags_.get()) + now_;
  }
  // All work of the step is on the stream.
  Status Submit();
  const Event& event() const { return *event_; }
  // Returns whether the work is done. Asks the device only when that is due.
  Result<bool> Reached(Clock::Time now);
  // REQUIRES that the work is done.
  bool found_nonfinite() const;

 private:
  explicit StepEnd(Stream* stream) : stream_(stream) {}

  Stream* const stream_;
  std::unique_ptr<Event> event_;
  DeviceMemory flags_;  // On the device, for two steps.
  DeviceMemory seen_;   // Pinned.
  int now_ = 0;
  bool submitted_ = false;  // The step of that flag.
  Looks looks_;
};

}  // namespace gradientflow
