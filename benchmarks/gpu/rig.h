#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "gradientflow/device/device.h"

namespace gradientflow::benchmarks {

// Times work on a device: on the host's clock, around so many launches that the
// wait at the end is negligible, and in comparison with the rate of a copy
// within the device's memory, measured in turn with it. Errors are thrown
// (lib/must.h). NOT thread-safe.
class Rig {
 public:
  // Launches some work and returns before it is done. `i` counts the launches,
  // so that each can use another set of inputs.
  using Launch = std::function<void(int i)>;

  struct Settings {
    int rounds = 7;
    double round_seconds = 0.01;  // At least, per side and round.
    std::size_t copy_bytes = std::size_t{256} << 20;  // Beyond any L2.
  };

  Rig(std::shared_ptr<Device> device, const Settings& settings);

  Device& device() { return *device_; }
  Stream& stream() { return *stream_; }
  std::string description() const { return device_->description(); }

  // Returns memory of the device with these bytes.
  DeviceMemory Upload(const void* data, std::size_t bytes);
  // Copies in either direction; done when this returns.
  void Copy(void* to, const void* from, std::size_t bytes);

  // Returns the seconds per launch, over `count` launches.
  double Time(int count, const Launch& launch);

  // Medians over the rounds.
  struct Timing {
    double seconds = 0;                // Per launch.
    double copy_bytes_per_second = 0;  // Read and written.
    double copy_share = 0;             // Rate over the copy's, by round.
  };
  // `bytes` is what one launch reads and writes, at least.
  Timing Measure(double bytes, const Launch& launch);

 private:
  // Returns how many launches take round_seconds.
  int CountFor(const Launch& launch);
  void CopyBuffer(int i);

  const std::shared_ptr<Device> device_;
  const Settings settings_;
  std::unique_ptr<Stream> stream_;
  DeviceMemory copied_[4];
  int copies_ = 0;
};

}  // namespace gradientflow::benchmarks
