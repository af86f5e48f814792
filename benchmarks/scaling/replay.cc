#include "benchmarks/scaling/replay.h"

#include <sys/prctl.h>

#include <cerrno>
#include <chrono>
#include <ctime>
#include <utility>

#include "benchmarks/lib/must.h"

namespace gradientflow::benchmarks {
namespace {

constexpr Clock::Time kSpin = std::chrono::microseconds(20);

}  // namespace

void WaitUntil(Clock::Time moment) {
  const SteadyClock clock;
  const Clock::Time wake = moment - kSpin;
  if (wake > clock.Now()) {
    prctl(PR_SET_TIMERSLACK, 1);  // The thread asks for exact timers.
    timespec at{};
    at.tv_sec = wake.count() / 1'000'000'000;
    at.tv_nsec = wake.count() % 1'000'000'000;
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, nullptr) ==
           EINTR) {
    }
  }
  while (clock.Now() < moment) {
  }
}

ReplayBackward::ReplayBackward(ReplayParts parts) : parts_(std::move(parts)) {
  if (parts_.device == nullptr) return;
  stream_ = Must(parts_.device->NewStream(/*urgent=*/false));
  host_ = Must(parts_.device->AllocatePinned(parts_.pool.bytes));
  prepared_ = Must(parts_.device->Allocate(parts_.pool.bytes));
}

void ReplayBackward::Prepare(std::uint64_t step) {
  const std::size_t bytes = parts_.pool.bytes;
  if (stream_ == nullptr) {
    parts_.gradients->Fill(parts_.rank, step, parts_.pool, parts_.accumulate);
  } else {
    parts_.gradients->Fill(parts_.rank, step, {host_.get(), bytes, {}});
    Must(stream_->Copy(prepared_.get(), host_.get(), bytes));
    Must(stream_->Synchronize());
  }
}

void ReplayBackward::Run(Clock::Time begin,
                         const std::function<void(std::size_t)>& ready) {
  begin_ = begin;
  const std::vector<ModelTensor>& tensors = parts_.model->tensors;
  for (std::size_t i = tensors.size(); i-- > 0;) {
    parts_.wait_until(begin + FromSeconds(tensors[i].ready_seconds));
    if (stream_ != nullptr) {
      // With the padding behind it, which the oracle takes for gradients.
      const std::size_t at = parts_.offsets[i];
      const std::size_t end =
          i == 0 ? parts_.pool.bytes : parts_.offsets[i - 1];
      Must(
          stream_->Copy(parts_.pool.data + at, prepared_.get() + at, end - at));
    }
    ready(i);
  }
}

Clock::Time ReplayBackward::End() const {
  return begin_ + FromSeconds(parts_.model->backward_seconds);
}

ConstBufferView ReplayBackward::Read() {
  if (stream_ == nullptr) return parts_.pool;
  const std::size_t bytes = parts_.pool.bytes;
  Must(stream_->Copy(host_.get(), parts_.pool.data, bytes));
  Must(stream_->Synchronize());
  return {host_.get(), bytes, {}};
}

void* ReplayBackward::native_stream() const {
  return stream_ == nullptr ? nullptr : stream_->native();
}

}  // namespace gradientflow::benchmarks
