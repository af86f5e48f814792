#pragma once

#include <cstddef>

#include "gradientflow/base/status.h"
#include "gradientflow/device/device.h"
#include "gradientflow/device/device_sync.h"

namespace gradientflow {

// How the gradients of a pool are handed over, section by section, from the
// hooks that write them to the communication that reads them. What has to
// happen in between depends on the kind of memory.
class Handover {
 public:
  virtual ~Handover() = default;

  // The hooks have written a section of the pool, or submitted the work that
  // writes it. Called by the last of them, on any thread.
  virtual Status Written(std::size_t section) = 0;
  // The sections that are written from here on are those of the next step.
  // REQUIRES that no hook runs.
  virtual void NextStep() = 0;
  // Whether communication may read a tensor as soon as its hook has written it;
  // otherwise it reads sections, after sync()->AwaitWritten().
  virtual bool reads_tensors() const = 0;
  // What the hooks submit from now on runs after `event`, which is one of
  // Aggregator::end(). May be called on any thread.
  virtual Status Follow(const Event& event) = 0;
  // What orders communication after the hooks on a device, and knows when each
  // section was there; null if that is when its last hook has returned.
  virtual DeviceSync* sync() const { return nullptr; }
};

// In the host's memory a tensor is there when its hook returns.
class HostHandover final : public Handover {
 public:
  Status Written(std::size_t) override { return Status(); }
  void NextStep() override {}
  bool reads_tensors() const override { return true; }
  Status Follow(const Event&) override { return Status(); }
};

// On a device each section has an event, and the stream of the collectives
// waits for those that it needs (DeviceSync::AwaitWritten()).
class DeviceHandover final : public Handover {
 public:
  // `sync` is borrowed, and outlives the handover.
  explicit DeviceHandover(DeviceSync& sync) : sync_(sync) {}

  Status Written(std::size_t section) override { return sync_.Ready(section); }
  void NextStep() override { sync_.NextStep(); }
  bool reads_tensors() const override { return false; }
  Status Follow(const Event& event) override { return sync_.Follow(event); }
  DeviceSync* sync() const override { return &sync_; }

 private:
  DeviceSync& sync_;
};

}  // namespace gradientflow
