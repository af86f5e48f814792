#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "gradientflow/base/fd.h"

namespace gradientflow {

// How often a port has sent something again, from the counters that its driver
// shows in sysfs. Drivers have names of their own for what calls for that: an
// acknowledgement that did not come, a packet that arrived out of order, a
// receiver that was not ready.
class RetryCounter {
 public:
  RetryCounter() = default;  // Counts nothing.
  // `device_path` is that of the device in sysfs (ibv_device::ibdev_path).
  RetryCounter(const std::string& device_path, int port);

  // Returns the sum, or nothing if the driver has no such counter. Some
  // microseconds per counter; drivers may answer with numbers that are 10 ms
  // old.
  std::optional<std::uint64_t> Total() const;

 private:
  std::vector<Fd> files_;
};

}  // namespace gradientflow
