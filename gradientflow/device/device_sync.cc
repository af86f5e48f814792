#include "gradientflow/device/device_sync.h"

#include <utility>

namespace gradientflow {

Result<std::unique_ptr<DeviceSync>> DeviceSync::Create(Device& device,
                                                       Stream& consumer,
                                                       std::size_t sections) {
  std::unique_ptr<DeviceSync> sync(new DeviceSync(device, consumer));
  for (std::size_t k = 0; k < sections; ++k) {
    Result<std::unique_ptr<Event>> event = device.NewEvent();
    if (!event.ok()) return event.status();
    sync->events_.push_back(std::move(event).value());
  }
  Result<std::unique_ptr<Event>> fence = device.NewEvent();
  if (!fence.ok()) return fence.status();
  sync->fence_ = std::move(fence).value();
  sync->SetProducer(nullptr);
  return sync;
}

void DeviceSync::SetProducer(void* native) {
  MutexLock lock(mutex_);
  producer_ = device_.Wrap(native);
}

Status DeviceSync::Ready(std::size_t section) {
  MutexLock lock(mutex_);
  return producer_->Record(events_[section].get());
}

Status DeviceSync::Fence(Stream& consumer) {
  {
    MutexLock lock(mutex_);
    GF_RETURN_IF_ERROR(producer_->Record(fence_.get()));
  }
  return consumer.Wait(*fence_);
}

Status DeviceSync::Follow(const Event& event) {
  MutexLock lock(mutex_);
  return producer_->Wait(event);
}

Status DeviceSync::Zero(void* data, std::size_t bytes) {
  MutexLock lock(mutex_);
  return producer_->Fill(data, 0, bytes);
}

}  // namespace gradientflow
