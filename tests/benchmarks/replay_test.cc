#include "benchmarks/scaling/replay.h"

#include <chrono>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace gradientflow::benchmarks {
namespace {

using std::chrono::milliseconds;

// Time stands still unless waited for; what is done takes `work`.
class ManualWaiter final : public Waiter {
 public:
  Clock::Time Now() override { return now_; }
  void Until(Clock::Time moment) override {
    if (moment > now_) now_ = moment;
  }
  void Work(Clock::Time work) { now_ += work; }

 private:
  Clock::Time now_ = milliseconds(1000);
};

Model Net(std::initializer_list<double> ready_seconds) {
  Model model;
  for (const double ready : ready_seconds) {
    model.tensors.push_back(ModelTensor{"", 1, ready});
  }
  return model;
}

using Events = std::vector<std::pair<std::size_t, Clock::Time>>;

TEST(ReplayBackward, CallsEachTensorAtItsTimeInGenerationOrder) {
  const Model model = Net({0.015, 0.004, 0.004, 0.001});
  ManualWaiter waiter;
  Events events;
  ReplayBackward(model, model.ReadyOrder(), waiter.Now(), waiter,
                 [&](std::size_t i) { events.emplace_back(i, waiter.Now()); });
  EXPECT_EQ(events, (Events{{3, milliseconds(1001)},
                            {2, milliseconds(1004)},
                            {1, milliseconds(1004)},
                            {0, milliseconds(1015)}}));
}

TEST(ReplayBackward, CatchesUpAfterASlowCallAsAGpuWould) {
  const Model model = Net({0.010, 0.003, 0.002, 0.001});
  ManualWaiter waiter;
  Events events;
  ReplayBackward(model, model.ReadyOrder(), waiter.Now(), waiter,
                 [&](std::size_t i) {
                   events.emplace_back(i, waiter.Now());
                   if (i == 3) waiter.Work(milliseconds(5));
                 });
  EXPECT_EQ(events, (Events{{3, milliseconds(1001)},
                            {2, milliseconds(1006)},
                            {1, milliseconds(1006)},
                            {0, milliseconds(1010)}}));
}

TEST(SleepingWaiter, NeverReturnsEarlyAndNotAtAllLateForThePast) {
  SleepingWaiter waiter;
  const Clock::Time begin = waiter.Now();
  for (const int microseconds : {0, 5, 300, 2000}) {
    const Clock::Time moment =
        waiter.Now() + std::chrono::microseconds(microseconds);
    waiter.Until(moment);
    EXPECT_GE(waiter.Now(), moment);
  }
  waiter.Until(begin);
  EXPECT_GE(waiter.Now(), begin);
}

}  // namespace
}  // namespace gradientflow::benchmarks
