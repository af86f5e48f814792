#pragma once

#include <atomic>

#include "gradientflow/base/clock.h"

namespace gradientflow {

// A clock that moves only when told to. For tests. Thread-safe.
class ManualClock final : public Clock {
 public:
  explicit ManualClock(Time start = Time(0)) : now_(start.count()) {}

  Time Now() const override {
    return Time(now_.load(std::memory_order_acquire));
  }
  // REQUIRES by >= 0.
  void Advance(Time by) {
    now_.fetch_add(by.count(), std::memory_order_acq_rel);
  }

 private:
  std::atomic<Time::rep> now_;
};

}  // namespace gradientflow
