#include "benchmarks/scaling/replay.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/device/fake_device.h"

namespace gradientflow::benchmarks {
namespace {

using std::chrono::milliseconds;

// Time stands still unless it is waited for.
struct ManualTime {
  Clock::Time now = milliseconds(1000);
  std::function<void(Clock::Time)> wait_until = [this](Clock::Time moment) {
    now = std::max(now, moment);
  };
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
  ManualTime time;
  Events events;
  ReplayBackward backward({.model = &model, .wait_until = time.wait_until});
  backward.Run(time.now,
               [&](std::size_t i) { events.emplace_back(i, time.now); });
  EXPECT_EQ(events, (Events{{3, milliseconds(1001)},
                            {2, milliseconds(1004)},
                            {1, milliseconds(1004)},
                            {0, milliseconds(1015)}}));
}

TEST(ReplayBackward, CatchesUpAfterASlowCallAsAGpuWould) {
  const Model model = Net({0.010, 0.003, 0.002, 0.001});
  ManualTime time;
  Events events;
  ReplayBackward backward({.model = &model, .wait_until = time.wait_until});
  backward.Run(time.now, [&](std::size_t i) {
    events.emplace_back(i, time.now);
    if (i == 3) time.now += milliseconds(5);
  });
  EXPECT_EQ(events, (Events{{3, milliseconds(1001)},
                            {2, milliseconds(1006)},
                            {1, milliseconds(1006)},
                            {0, milliseconds(1010)}}));
}

TEST(ReplayBackward, EndsWhenTheModelsGpuWouldHoweverLateTheLastCallWas) {
  Model model = Net({0.010, 0.001});
  model.backward_seconds = 0.010;
  ManualTime time;
  ReplayBackward backward({.model = &model, .wait_until = time.wait_until});
  backward.Run(time.now, [&](std::size_t) { time.now += milliseconds(50); });
  EXPECT_EQ(backward.End(), milliseconds(1010));
}

TEST(ReplayBackward, PreparesTheRanksGradientsInThePoolItself) {
  const Model model = Net({0.001});
  const Gradients gradients(DType::kFloat16);
  std::vector<std::byte> pool(2 * 1009);
  ManualTime time;
  ReplayBackward backward({.model = &model,
                           .gradients = &gradients,
                           .pool = {pool.data(), pool.size(), {}},
                           .rank = 3,
                           .wait_until = time.wait_until});
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
  ManualTime time;
  ReplayBackward backward({.model = &model,
                           .gradients = &gradients,
                           .pool = {pool.get(), bytes, device->id()},
                           .rank = 1,
                           .device = device,
                           .offsets = {2 * 4002, 2 * 4001, 0},
                           .wait_until = time.wait_until});
  EXPECT_NE(backward.native_stream(), nullptr);
  for (const std::uint64_t step : {0, 1, 9}) {
    backward.Prepare(step);
    backward.Run(time.now, [](std::size_t) {});
    const ConstBufferView seen = backward.Read();
    ASSERT_EQ(seen.bytes, bytes);
    for (std::size_t i = 0; i < model.elements(); ++i) {
      ASSERT_EQ(ElementAt(seen, DType::kFloat16, i),
                gradients.Value(1, step, i))
          << "step " << step << ", element " << i;
    }
  }
}

TEST(WaitUntil, NeverReturnsEarlyAndNotAtAllLateForThePast) {
  const SteadyClock clock;
  const Clock::Time begin = clock.Now();
  for (const int microseconds : {0, 5, 300, 2000}) {
    const Clock::Time moment =
        clock.Now() + std::chrono::microseconds(microseconds);
    WaitUntil(moment);
    EXPECT_GE(clock.Now(), moment);
  }
  WaitUntil(begin);
  EXPECT_GE(clock.Now(), begin);
}

}  // namespace
}  // namespace gradientflow::benchmarks
