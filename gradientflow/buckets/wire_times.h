#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "gradientflow/base/status.h"
#include "gradientflow/device/device.h"

namespace gradientflow {

// When the exchanges of a step ended, on a device's clock. An exchange begins
// when its part of the pool is written and the one before it has ended, so the
// ends are all that is needed. NOT thread-safe: called by the driving thread.
class WireTimes {
 public:
  // Both are borrowed and outlive this. `wire` is the stream of the exchanges.
  WireTimes(Device* device, Stream* wire) : device_(device), wire_(wire) {}

  // A step with so many exchanges begins; the times of the one before it are
  // gone. Makes events only if no earlier step had as many.
  Status Begin(std::size_t exchanges);
  // All work of the next exchange is on the stream: one of pool elements before
  // `written_end`. Returns kInternal if Begin() has made no event for it.
  Status Ended(std::size_t written_end);

  struct Exchange {
    std::size_t written_end = 0;
    std::unique_ptr<Event> end;  // Keeps its time.
  };
  std::span<const Exchange> exchanges() const {
    return std::span(exchanges_).first(ended_);
  }

 private:
  Device* const device_;
  Stream* const wire_;
  std::vector<Exchange> exchanges_;
  std::size_t ended_ = 0;
};

}  // namespace gradientflow
