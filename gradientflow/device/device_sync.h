#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "gradientflow/base/mutex.h"
#include "gradientflow/base/status.h"
#include "gradientflow/device/device.h"

namespace gradientflow {

// Orders communication after backward on a device without stopping either: a
// hook that completes a group of tensors leaves an event on the stream that
// computes (the producer); what reads the pool (the consumer) waits for it on
// the device. The host waits nowhere.
class DeviceSync {
 public:
  // One event for each of `groups`. `device` and `consumer` outlive the
  // result. The producer is the device's legacy default stream until
  // SetProducer().
  static Result<std::unique_ptr<DeviceSync>> Create(Device& device,
                                                    Stream& consumer,
                                                    std::size_t groups);

  // `native`: the stream gradients are computed on, the caller's. Not while a
  // hook runs.
  void SetProducer(void* native);
  // NOT thread-safe; between steps.
  Stream& producer() { return *producer_; }

  // Group `group`'s gradients are written by what the producer has been given
  // so far. Any thread.
  Status Ready(std::size_t group) GF_EXCLUDES(mutex_);
  // Zeroes bytes of the pool, in the producer's order. Any thread.
  Status Zero(void* data, std::size_t bytes) GF_EXCLUDES(mutex_);

  // What `consumer` is given from now on comes after what the producer has been
  // given so far. The driving thread.
  Status Fence(Stream& consumer) GF_EXCLUDES(mutex_);

  // What the consumer is given from now on comes after Ready(group). The
  // driving thread.
  Status Await(std::size_t group) { return consumer_.Wait(*events_[group]); }

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
