#include "benchmarks/scaling/replay.h"

#include <sys/prctl.h>

#include <cerrno>
#include <chrono>
#include <ctime>

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

ReplayBackward::ReplayBackward(const ReplayParts& parts)
    : parts_(parts), order_(parts.model->ReadyOrder()) {}

Status ReplayBackward::Prepare(std::uint64_t step) {
  parts_.gradients->Fill(parts_.rank, step, parts_.pool);
  return Status();
}

Status ReplayBackward::Run(Clock::Time begin,
                           const std::function<void(std::size_t)>& ready) {
  begin_ = begin;
  for (const std::size_t i : order_) {
    parts_.waiter->Until(begin +
                         FromSeconds(parts_.model->tensors[i].ready_seconds));
    ready(i);
  }
  return Status();
}

Result<Clock::Time> ReplayBackward::End() {
  return begin_ + FromSeconds(parts_.model->backward_seconds);
}

std::optional<double> ReplayBackward::seconds_alone() const {
  return parts_.model->backward_seconds;
}

}  // namespace gradientflow::benchmarks
