#pragma once

#include <memory>
#include <vector>

#include "gradientflow/base/status.h"
#include "gradientflow/device/device.h"

namespace gradientflow {

// Tells when a device has done work, so that the memory of the work may be
// freed. Work has ended if an event after it is reached, or if the device is
// lost. Any other error says nothing about the work (a stream that is being
// captured takes no event, for example), so the call that failed is made again.
// If the end stays unknown, the owner must keep the memory. NOT thread-safe.
class WorkEnd {
 public:
  explicit WorkEnd(Device& device) : device_(device) {}

  // Waits for all work that the stream is given before Reached() is called for
  // the first time. The stream is borrowed.
  void Add(Stream& stream) { parts_.push_back({&stream, nullptr, nullptr}); }
  // Waits for the work before the last Record() of the event, which is
  // borrowed.
  void Add(const Event& event) { parts_.push_back({nullptr, nullptr, &event}); }

  // Returns whether all work has ended. Does not block. It must not be called
  // while another thread submits to the streams.
  bool Reached();
  // The error because of which the last Reached() does not know whether some
  // work has ended. OK if there was none.
  const Status& doubt() const { return doubt_; }

 private:
  struct Part {
    Stream* stream;
    std::unique_ptr<Event> own;  // For the end of the stream's work.
    const Event* recorded;       // Null until `own` is recorded.
  };
  Result<bool> Look(Part* part);

  Device& device_;
  std::vector<Part> parts_;  // Those that have not ended.
  Status doubt_;
};

}  // namespace gradientflow
