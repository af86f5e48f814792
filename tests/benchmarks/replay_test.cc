#include "benchmarks/scaling/replay.h"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/device/fake_device.h"

namespace gradientflow::benchmarks {
namespace {

using std::chrono::milliseconds;

// Time stands still unless it is waited for; each piece of work takes `work`.
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
  ReplayBackward backward({.model = &model, .waiter = &waiter});
  backward.Run(waiter.Now(),
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
  ReplayBackward backward({.model = &model, .waiter = &waiter});
  backward.Run(waiter.Now(), [&](std::size_t i) {
    events.emplace_back(i, waiter.Now());
    if (i == 3) waiter.Work(milliseconds(5));
  });
  EXPECT_EQ(events, (Events{{3, milliseconds(1001)},
                            {2, milliseconds(1006)},
                            {1, milliseconds(1006)},
                            {0, milliseconds(1010)}}));
}

TEST(ReplayBackward, EndsWhenTheModelsGpuWouldHoweverLateTheLastCallWas) {
  Model model = Net({0.010, 0.001});
  model.backward_seconds = 0.010;
  ManualWaiter waiter;
  ReplayBackward backward({.model = &model, .waiter = &waiter});
  backward.Run(waiter.Now(),
               [&](std::size_t) { waiter.Work(milliseconds(50)); });
  EXPECT_EQ(backward.End(), milliseconds(1010));
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
    backward.Prepare(step);
    const ConstBufferView seen = backward.Read();
    EXPECT_EQ(seen.data, pool.data());
    for (const std::size_t element : {0, 1, 500, 1008}) {
      EXPECT_EQ(ElementAt(seen, DType::kFloat16, element),
                gradients.Value(3, step, element));
    }
  }
}

// The pool is in generation order: last, bias, first.
TEST(ReplayBackward, CopiesEveryGradientOnTheDevicesStreamBeforeItIsReady) {
  Model model = Net({0.003, 0.003, 0.001});
  model.tensors[0].elements = 1009;
  model.tensors[2].elements = 4001;
  const std::size_t bytes = 2 * model.elements();
  const Gradients gradients(DType::kFloat16);
  const auto device = std::make_shared<testing::FakeDevice>();
  const DeviceMemory pool = device->Allocate(bytes).value();
  ManualWaiter waiter;
  ReplayBackward backward({.model = &model,
                           .gradients = &gradients,
                           .waiter = &waiter,
                           .pool = {pool.get(), bytes, device->id()},
                           .rank = 1,
                           .device = device,
                           .offsets = {2 * 4002, 2 * 4001, 0}});
  EXPECT_NE(backward.native_stream(), nullptr);
  for (const std::uint64_t step : {0, 1, 9}) {
    backward.Prepare(step);
    backward.Run(waiter.Now(), [](std::size_t) {});
    const ConstBufferView seen = backward.Read();
    ASSERT_EQ(seen.bytes, bytes);
    for (std::size_t i = 0; i < model.elements(); ++i) {
      ASSERT_EQ(ElementAt(seen, DType::kFloat16, i),
                gradients.Value(1, step, i))
          << "step " << step << ", element " << i;
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
