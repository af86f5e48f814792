#pragma once

#include <cstddef>
#include <span>

#include "gradientflow/base/clock.h"
#include "gradientflow/base/status.h"
#include "gradientflow/buckets/wire_times.h"
#include "gradientflow/device/device_sync.h"

namespace gradientflow {

// The times of one step's communication.
struct EngineTimes {
  double backward_seconds = 0;
  double exposed_seconds = 0;
  double hidden_seconds = 0;
  // By the host's clock: when the first gradient was there, when the last one
  // was, and when the wait for the step's end was over.
  Clock::Time first{};
  Clock::Time over{};
  Clock::Time end{};
};

// The events of a step on a device. All are borrowed.
struct StepOnDevice {
  const DeviceSync* sync = nullptr;
  DeviceSync::Of step = DeviceSync::Of::kThisStep;
  std::span<const std::size_t> section_ends;  // In pool elements.
};

// Returns the seconds from the first section that was ready to the last one.
// REQUIRES that the device has come to all of them.
Result<double> BackwardOnDevice(const StepOnDevice& step);

// Returns the times of a step whose exchanges `wire` has and whose last work
// ends with `end`, which the device has reached. What is hidden is the time in
// which an exchange was on the wire while backward still ran; what is exposed,
// the time from the end of backward to `end`.
Result<EngineTimes> TimesOnDevice(const StepOnDevice& step,
                                  const WireTimes& wire, const Event& end);

}  // namespace gradientflow
