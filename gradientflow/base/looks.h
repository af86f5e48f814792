#pragma once

#include <algorithm>
#include <chrono>

#include "gradientflow/base/clock.h"

// How often a device is asked for an event, and how long a thread sleeps that
// waits for one. A question takes the host a microsecond or so, and may hold up
// the launch of another thread.
namespace gradientflow {

// The interval if nobody is held up by the answer.
inline constexpr Clock::Time kLookInterval = std::chrono::microseconds(50);

// The interval if somebody has been waiting for `waited` so far: a 32nd of
// that, within [shortest, kLookInterval]. So a wait ends soon after the device
// does, and a long one costs little.
inline Clock::Time IntervalAfter(Clock::Time waited, Clock::Time shortest) {
  constexpr int kShare = 32;
  return std::clamp(waited / kShare, shortest, kLookInterval);
}

// Says when to ask for an event that somebody waits for. NOT thread-safe.
class Looks {
 public:
  // A new wait begins with the next Due(), which returns true.
  void Begin() { begun_ = false; }
  // Returns whether to ask now.
  bool Due(Clock::Time now) {
    constexpr Clock::Time kShortest = std::chrono::microseconds(5);
    if (!begun_) {
      begun_ = true;
      since_ = now;
    } else if (now - looked_at_ < IntervalAfter(now - since_, kShortest)) {
      return false;
    }
    looked_at_ = now;
    return true;
  }

 private:
  bool begun_ = false;
  Clock::Time since_{};
  Clock::Time looked_at_{};
};

}  // namespace gradientflow
