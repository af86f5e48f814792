#pragma once

#include <chrono>

namespace gradientflow {

// The only source of time. It is passed in, so that tests and the cost model
// can move time by hand. Thread-safe; never goes backwards.
class Clock {
 public:
  using Time = std::chrono::nanoseconds;  // Since an arbitrary origin.
  virtual ~Clock() = default;
  virtual Time Now() const = 0;
};

// std::chrono::steady_clock: comparable between the processes of one machine.
class SteadyClock final : public Clock {
 public:
  Time Now() const override {
    return std::chrono::duration_cast<Time>(
        std::chrono::steady_clock::now().time_since_epoch());
  }
};

inline double Seconds(Clock::Time t) {
  return std::chrono::duration<double>(t).count();
}

inline Clock::Time FromSeconds(double seconds) {
  return std::chrono::duration_cast<Clock::Time>(
      std::chrono::duration<double>(seconds));
}

}  // namespace gradientflow
