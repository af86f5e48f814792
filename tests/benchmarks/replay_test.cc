#include "benchmarks/scaling/replay.h"

#include <chrono>
#include <cstddef>
#include <cstdint>
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
    model.tensors.push_back(ModelTensor{"", 1, ready, 0});
  }
  return model;
}

using Events = std::vector<std::pair<std::size_t, Clock::Time>>;

ReplayBackward Replay(const Model& model, Waiter& waiter) {
  return ReplayBackward({.model = &model, .waiter = &waiter});
}

TEST(ReplayBackward, CallsEachTensorAtItsTimeInGenerationOrder) {
  const Model model = Net({0.015, 0.004, 0.004, 0.001});
  ManualWaiter waiter;
  Events events;
  ReplayBackward backward = Replay(model, waiter);
  ASSERT_TRUE(
      backward
          .Run(waiter.Now(),
               [&](std::size_t i) { events.emplace_back(i, waiter.Now()); })
          .ok());
  EXPECT_EQ(events, (Events{{3, milliseconds(1001)},
                            {2, milliseconds(1004)},
                            {1, milliseconds(1004)},
                            {0, milliseconds(1015)}}));
}

TEST(ReplayBackward, CatchesUpAfterASlowCallAsAGpuWould) {
  const Model model = Net({0.010, 0.003, 0.002, 0.001});
  ManualWaiter waiter;
  Events events;
  ReplayBackward backward = Replay(model, waiter);
  ASSERT_TRUE(backward
                  .Run(waiter.Now(),
                       [&](std::size_t i) {
                         events.emplace_back(i, waiter.Now());
                         if (i == 3) waiter.Work(milliseconds(5));
                       })
                  .ok());
  EXPECT_EQ(events, (Events{{3, milliseconds(1001)},
                            {2, milliseconds(1006)},
                            {1, milliseconds(1006)},
                            {0, milliseconds(1010)}}));
}

TEST(ReplayBackward, EndsWhenTheModelsGpuWouldHoweverLateTheLastCallWas) {
  Model model = Net({0.010, 0.001});
  model.backward_seconds = 0.010;
  ManualWaiter waiter;
  ReplayBackward backward = Replay(model, waiter);
  EXPECT_EQ(backward.seconds_alone(), 0.010);
  ASSERT_TRUE(backward
                  .Run(waiter.Now(),
                       [&](std::size_t) { waiter.Work(milliseconds(50)); })
                  .ok());
  EXPECT_EQ(backward.End().value(), milliseconds(1010));
}

TEST(ReplayBackward, PreparesTheRanksGradientsInThePoolItself) {
  const Model model = Net({0.001});
  const Gradients gradients(DType::kFloat16);
  std::vector<std::byte> pool(2 * 1009);
  ManualWaiter waiter;
  ReplayBackward backward({.model = &model,
                           .gradients = &gradients,
                           .waiter = &waiter,
                           .pool = {pool.data(), pool.size(), {}},
                           .rank = 3});
  for (const std::uint64_t step : {0, 7}) {
    ASSERT_TRUE(backward.Prepare(step).ok());
    const ConstBufferView seen = backward.Read().value();
    EXPECT_EQ(seen.data, pool.data());
    for (const std::size_t element : {0, 1, 500, 1008}) {
      EXPECT_EQ(ElementAt(seen, DType::kFloat16, element),
                gradients.Value(3, step, element));
    }
  }
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
