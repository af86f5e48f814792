#include "gradientflow/device/device_sync.h"

#include <algorithm>
#include <thread>
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
  const std::thread::id thread = std::this_thread::get_id();
  if (reach.count == 0) {
    reach.first = section;
    reach.thread = thread;
  }
  reach.mixed = reach.mixed || reach.thread != thread;
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
  bool mixed = false;
  {
    MutexLock lock(mutex_);
    mixed = reach_[set].mixed;
    const std::vector<std::size_t>& places = places_[set];
    for (std::size_t k = first; k < end; ++k) {
      if (places[k] > places[last]) last = k;
    }
  }
  Result<double> latest = ReadySeconds(step, last);
  for (std::size_t k = first; mixed && latest.ok() && k < end; ++k) {
    const Result<double> ready = ReadySeconds(step, k);
    if (!ready.ok() || ready.value() > latest.value()) latest = ready;
  }
  return latest;
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
  bool given_up = false;
  {
    MutexLock lock(mutex_);
    const std::vector<std::size_t>& places = places_[now_];
    for (; awaited_ < section_ends_.size() &&
           (awaited_ == 0 ? 0 : section_ends_[awaited_ - 1]) < written_end;
         ++awaited_) {
      const Event* event = events_[now_][awaited_].get();
      given_up = given_up || places[awaited_] == 0;
      if (places[awaited_] <= awaited_place_) continue;
      if (reach_[now_].mixed) {
        GF_RETURN_IF_ERROR(consumer.Wait(*event));
        continue;
      }
      awaited_place_ = places[awaited_];
      last = event;
    }
  }
  if (last != nullptr) GF_RETURN_IF_ERROR(consumer.Wait(*last));
  return given_up ? Fence(consumer) : Status();
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
