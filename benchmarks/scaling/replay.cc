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

void ReplayBackward(const Model& model, const std::vector<std::size_t>& order,
                    Clock::Time begin, Waiter& waiter,
                    const std::function<void(std::size_t)>& ready) {
  for (const std::size_t i : order) {
    waiter.Until(begin + FromSeconds(model.tensors[i].ready_seconds));
    ready(i);
  }
}

}  // namespace gradientflow::benchmarks
