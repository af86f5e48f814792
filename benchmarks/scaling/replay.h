#pragma once

#include <cstddef>
#include <functional>

#include "benchmarks/scaling/model.h"
#include "gradientflow/base/clock.h"

namespace gradientflow::benchmarks {

// Waits for moments of a Clock.
class Waiter {
 public:
  virtual ~Waiter() = default;
  virtual Clock::Time Now() = 0;
  virtual void Until(Clock::Time moment) = 0;  // At once when it has passed.
};

// Waits for moments of SteadyClock: sleeps, then spins for the last few
// microseconds, so that a modelled GPU takes no core from the communication
// and is still on time.
class SleepingWaiter final : public Waiter {
 public:
  SleepingWaiter();  // Asks for exact timers for the calling thread.
  Clock::Time Now() override;
  void Until(Clock::Time moment) override;
};

Clock::Time FromSeconds(double seconds);

// Backward as a GPU would do it: calls ready(i) for every tensor of `model`
// when its gradient would be complete, counted from `begin`, in
// model.ReadyOrder(). `order` is that, made beforehand.
void ReplayBackward(const Model& model, const std::vector<std::size_t>& order,
                    Clock::Time begin, Waiter& waiter,
                    const std::function<void(std::size_t)>& ready);

}  // namespace gradientflow::benchmarks
