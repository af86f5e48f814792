#include "benchmarks/scaling/replay.h"

#include <sys/prctl.h>

#include <cerrno>
#include <chrono>
#include <ctime>
#include <utility>

namespace gradientflow::benchmarks {
namespace {

constexpr Clock::Time kSpin = std::chrono::microseconds(20);

}  // namespace

SleepingWaiter::SleepingWaiter() { prctl(PR_SET_TIMERSLACK, 1); }

Clock::Time SleepingWaiter::Now() { return SteadyClock().Now(); }

void SleepingWaiter::Until(Clock::Time moment) {
  const Clock::Time wake = moment - kSpin;
  if (wake > Now()) {
    timespec at{};
    at.tv_sec = wake.count() / 1'000'000'000;
    at.tv_nsec = wake.count() % 1'000'000'000;
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, nullptr) ==
           EINTR) {
    }
  }
  while (Now() < moment) {
  }
}

Clock::Time FromSeconds(double seconds) {
  return std::chrono::duration_cast<Clock::Time>(
      std::chrono::duration<double>(seconds));
}

ReplayBackward::ReplayBackward(ReplayParts parts)
    : parts_(std::move(parts)), order_(parts_.model->ReadyOrder()) {}

Result<std::unique_ptr<ReplayBackward>> ReplayBackward::Create(
    ReplayParts parts) {
  std::unique_ptr<ReplayBackward> made(new ReplayBackward(std::move(parts)));
  Device* const device = made->parts_.device.get();
  if (device == nullptr) return made;
  const std::size_t bytes = made->parts_.pool.bytes;
  auto stream = device->NewStream(/*urgent=*/false);
  if (!stream.ok()) return stream.status();
  made->stream_ = std::move(stream).value();
  auto host = device->AllocatePinned(bytes);
  if (!host.ok()) return host.status();
  made->host_ = std::move(host).value();
  auto prepared = device->Allocate(bytes);
  if (!prepared.ok()) return prepared.status();
  made->prepared_ = std::move(prepared).value();
  return made;
}

Status ReplayBackward::Prepare(std::uint64_t step) {
  const std::size_t bytes = parts_.pool.bytes;
  if (parts_.accumulate) {
    parts_.gradients->Add(parts_.rank, step, parts_.pool);
    return Status();
  }
  if (stream_ == nullptr) {
    parts_.gradients->Fill(parts_.rank, step, parts_.pool);
    return Status();
  }
  parts_.gradients->Fill(parts_.rank, step, {host_.get(), bytes, {}});
  GF_RETURN_IF_ERROR(stream_->Copy(prepared_.get(), host_.get(), bytes));
  return stream_->Synchronize();
}

Status ReplayBackward::Run(Clock::Time begin,
                           const std::function<void(std::size_t)>& ready) {
  begin_ = begin;
  for (const std::size_t i : order_) {
    parts_.waiter->Until(begin +
                         FromSeconds(parts_.model->tensors[i].ready_seconds));
    if (stream_ != nullptr) {
      const std::size_t at = parts_.offsets[i];
      const std::size_t bytes = parts_.model->tensors[i].elements *
                                (parts_.pool.bytes / parts_.model->elements());
      GF_RETURN_IF_ERROR(
          stream_->Copy(parts_.pool.data + at, prepared_.get() + at, bytes));
    }
    ready(i);
  }
  return Status();
}

Clock::Time ReplayBackward::End() const {
  return begin_ + FromSeconds(parts_.model->backward_seconds);
}

Result<ConstBufferView> ReplayBackward::Read() {
  if (stream_ == nullptr) return ConstBufferView(parts_.pool);
  const std::size_t bytes = parts_.pool.bytes;
  GF_RETURN_IF_ERROR(stream_->Copy(host_.get(), parts_.pool.data, bytes));
  GF_RETURN_IF_ERROR(stream_->Synchronize());
  return ConstBufferView{host_.get(), bytes, {}};
}

void* ReplayBackward::native_stream() const {
  return stream_ == nullptr ? nullptr : stream_->native();
}

}  // namespace gradientflow::benchmarks
