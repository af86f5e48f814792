#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "gradientflow/base/mutex.h"
#include "gradientflow/base/status.h"
#include "gradientflow/device/device.h"

namespace gradientflow {

// Orders communication after backward on a device without stopping either. A
// hook that completes a section of the pool records an event on the stream that
// computes (the producer). The stream that reads the pool (the consumer) waits
// for the event on the device. The host waits for neither.
class DeviceSync {
 public:
  // Makes an event for each of `sections` of the pool. `device` and `consumer`
  // outlive the result. The producer is the device's legacy default stream
  // until SetProducer().
  static Result<std::unique_ptr<DeviceSync>> Create(Device& device,
                                                    Stream& consumer,
                                                    std::size_t sections);

  // `native` is the stream that gradients are computed on; the caller owns it.
  // Must not be called while a hook runs.
  void SetProducer(void* native);
  // NOT thread-safe; between steps.
  Stream& producer() { return *producer_; }

  // All work that writes the gradients of that section has been given to the
  // producer. May be called on any thread.
  Status Ready(std::size_t section) GF_EXCLUDES(mutex_);
  // Zeroes bytes of the pool, in the order of the producer. May be called on
  // any thread.
  Status Zero(void* data, std::size_t bytes) GF_EXCLUDES(mutex_);

  // Work that `consumer` is given from now on runs after the work that the
  // producer has been given so far. Called by the driving thread.
  Status Fence(Stream& consumer) GF_EXCLUDES(mutex_);

  // Work that the producer is given from now on runs after `event`. May be
  // called on any thread.
  Status Follow(const Event& event) GF_EXCLUDES(mutex_);

  // Work that the consumer is given from now on runs after Ready(section).
  // Called by the driving thread.
  Status Await(std::size_t section) {
    return consumer_.Wait(*events_[section]);
  }

 private:
  DeviceSync(Device& device, Stream& consumer)
      : device_(device), consumer_(consumer) {}

  Device& device_;
  Stream& consumer_;
  Mutex mutex_;  // One thread at a time submits to the producer.
  std::unique_ptr<Stream> producer_;
  std::vector<std::unique_ptr<Event>> events_;
  std::unique_ptr<Event> fence_;
};

}  // namespace gradientflow
