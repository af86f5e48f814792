#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include "benchmarks/scaling/backward.h"
#include "benchmarks/scaling/gradients.h"
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

// Of one rank, for a pool in the memory of the host.
struct ReplayParts {
  const Model* model = nullptr;  // Borrowed, as all of this.
  const Gradients* gradients = nullptr;
  Waiter* waiter = nullptr;
  BufferView pool = {};
  int rank = 0;
};

// Backward as the model's GPU would do it: ready(i) is called when tensor i's
// gradient would be complete. Prepare() writes the gradients; the time between
// them is the waiter's.
class ReplayBackward final : public Backward {
 public:
  explicit ReplayBackward(const ReplayParts& parts);

  Status Prepare(std::uint64_t step) override;
  Status Run(Clock::Time begin,
             const std::function<void(std::size_t)>& ready) override;
  // When that GPU would have been done, also where Run() came late for want of
  // a core.
  Result<Clock::Time> End() override;
  Result<ConstBufferView> Read() override {
    return ConstBufferView(parts_.pool);
  }
  std::optional<double> seconds_alone() const override;

 private:
  const ReplayParts parts_;
  const std::vector<std::size_t> order_;
  Clock::Time begin_{};
};

}  // namespace gradientflow::benchmarks
