#include "gradientflow/buckets/step_end.h"

#include <cstring>
#include <utility>

namespace gradientflow {

Result<std::unique_ptr<StepEnd>> StepEnd::Create(Device* device,
                                                 Stream* stream) {
  std::unique_ptr<StepEnd> end(new StepEnd(stream));
  Result<DeviceMemory> flags = device->Allocate(2 * sizeof(std::uint32_t));
  if (!flags.ok()) return flags.status();
  end->flags_ = std::move(flags).value();
  Result<DeviceMemory> seen = device->AllocatePinned(sizeof(std::uint32_t));
  if (!seen.ok()) return seen.status();
  end->seen_ = std::move(seen).value();
  Result<std::unique_ptr<Event>> event = device->NewTimedEvent();
  if (!event.ok()) return event.status();
  end->event_ = std::move(event).value();
  return end;
}

StepEnd::~StepEnd() { (void)stream_->Synchronize(); }

Status StepEnd::Begin() {
  if (std::exchange(submitted_, false)) now_ = 1 - now_;
  return stream_->Fill(nonfinite(), 0, sizeof(std::uint32_t));
}

Status StepEnd::Submit() {
  submitted_ = true;
  looks_.Begin();
  GF_RETURN_IF_ERROR(
      stream_->Copy(seen_.get(), nonfinite(), sizeof(std::uint32_t)));
  return stream_->Record(event_.get());
}

Result<bool> StepEnd::Reached(Clock::Time now) {
  return looks_.Due(now) ? event_->Query() : false;
}

bool StepEnd::found_nonfinite() const {
  std::uint32_t nonfinite = 0;
  std::memcpy(&nonfinite, seen_.get(), sizeof(nonfinite));
  return nonfinite != 0;
}

}  // namespace gradientflow
