#include "gradientflow/device/device_sync.h"

#include <algorithm>
#include <utility>

#include "gradientflow/base/str_cat.h"

namespace gradientflow {

Result<std::unique_ptr<DeviceSync>> DeviceSync::Create(
    Device& device, SectionEnds section_ends) {
  const std::size_t sections = section_ends.size();
  std::unique_ptr<DeviceSync> sync(
      new DeviceSync(device, std::move(section_ends)));
  for (auto& events : sync->events_) {
    for (std::size_t k = 0; k < sections; ++k) {
      Result<std::unique_ptr<Event>> event = device.NewTimedEvent();
      if (!event.ok()) return event.status();
      events.push_back(std::move(event).value());
    }
  }
  Result<std::unique_ptr<Event>> fence = device.NewEvent();
  if (!fence.ok()) return fence.status();
  sync->fence_ = std::move(fence).value();
  Result<std::unique_ptr<Event>> probe = device.NewEvent();
  if (!probe.ok()) return probe.status();
  sync->probe_ = std::move(probe).value();
  sync->producer_ = device.Wrap(nullptr);
  return sync;
}

Status DeviceSync::SetProducer(void* native) {
  std::unique_ptr<Stream> producer = device_.Wrap(native);
  MutexLock lock(mutex_);
  const Status taken = producer->Record(probe_.get());
  if (!taken.ok()) {
    return Status(taken.code(),
                  StrCat("SetStream(): ", device_.description(),
                         " takes no work on that stream: ", taken.message()));
  }
  producer_ = std::move(producer);
  return Status();
}

void DeviceSync::NextStep() {
  MutexLock lock(mutex_);
  now_ = 1 - now_;
  consumer_ = nullptr;
  std::ranges::fill(places_[now_], std::size_t{0});
  reach_[now_] = Reach();
}

Status DeviceSync::Ready(std::size_t section) {
  MutexLock lock(mutex_);
  Reach& reach = reach_[now_];
  if (reach.count == 0) reach.first = section;
  reach.last = section;
  places_[now_][section] = ++reach.count;
  return producer_->Record(events_[now_][section].get());
}

Result<double> DeviceSync::SecondsOf(Of step, const Event& event) const {
  const int set = SetOf(step);
  std::size_t first = 0;
  {
    MutexLock lock(mutex_);
    first = reach_[set].first;
  }
  // To itself it is not even asked for.
  const Event& begin = *events_[set][first];
  if (&event == &begin) return 0.0;
  return event.SecondsSince(begin);
}

Result<double> DeviceSync::LastReadySeconds(Of step, std::size_t first,
                                            std::size_t end) const {
  const int set = SetOf(step);
  std::size_t last = first;
  {
    MutexLock lock(mutex_);
    const std::vector<std::size_t>& places = places_[set];
    for (std::size_t k = first; k < end; ++k) {
      if (places[k] > places[last]) last = k;
    }
  }
  return SecondsOf(step, *events_[set][last]);
}

Result<bool> DeviceSync::Reached() const {
  Reach reach;
  {
    MutexLock lock(mutex_);
    reach = reach_[now_];
  }
  if (reach.count == 0) return true;
  return events_[now_][reach.last]->Query();
}

Status DeviceSync::AwaitWritten(std::size_t written_end, Stream& consumer) {
  if (std::exchange(consumer_, &consumer) != &consumer) {
    awaited_ = awaited_place_ = 0;
  }
  const Event* last = nullptr;
  {
    MutexLock lock(mutex_);
    const std::vector<std::size_t>& places = places_[now_];
    for (; awaited_ < section_ends_.size() &&
           (awaited_ == 0 ? 0 : section_ends_[awaited_ - 1]) < written_end;
         ++awaited_) {
      if (places[awaited_] <= awaited_place_) continue;
      awaited_place_ = places[awaited_];
      last = events_[now_][awaited_].get();
    }
  }
  return last == nullptr ? Status() : consumer.Wait(*last);
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
