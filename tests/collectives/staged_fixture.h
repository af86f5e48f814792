#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "gradientflow/base/manual_clock.h"
#include "gradientflow/collectives/call_plan.h"
#include "gradientflow/collectives/staged.h"
#include "tests/collectives/manual_collective.h"
#include "tests/device/fake_device.h"
#include "transports/fabric.h"
#include "transports/link.h"
#include "transports/poller.h"

// One rank's StagedCollective over an inner collective that the test controls.
namespace gradientflow::testing {

inline CallGroup TwoRanks() {
  CallGroup group;
  group.size = 2;
  group.topology.host = {0, 0};
  return group;
}

inline constexpr std::size_t kPiece = 1024;  // Elements.

class StagedPieces : public ::testing::Test {
 protected:
  explicit StagedPieces(FakeLag lag = FakeLag::kNone)
      : device_(OptionsOf(lag)), fabric_(0, 2, clock_, NewPoller(), {}) {
    std::vector<std::unique_ptr<Link>> links(2);
    fabric_.Connect(std::move(links));
    Build();
  }
  static FakeOptions OptionsOf(FakeLag lag) {
    FakeOptions options;
    options.lag = lag;
    return options;
  }
  static std::unique_ptr<Poller> NewPoller() {
    return std::move(Poller::Create()).value();
  }
  void Build() {
    StagedArgs parts;
    parts.inner = &inner_;
    parts.device = &device_;
    parts.fabric = &fabric_;
    parts.clock = &clock_;
    parts.group = TwoRanks();
    StagedOptions options;
    options.piece_bytes = kPiece * sizeof(float);
    options.pieces_in_flight = 2;
    options.staging_bytes = std::size_t{64} << 10;
    Result<std::unique_ptr<StagedCollective>> staged =
        StagedCollective::Create(parts, options);
    ASSERT_TRUE(staged.ok()) << staged.status().ToString();
    staged_ = std::move(staged).value();
  }

  // Device memory that holds these values already.
  DeviceMemory Upload(const std::vector<float>& values) {
    Result<DeviceMemory> memory =
        device_.Allocate(values.size() * sizeof(float));
    EXPECT_TRUE(memory.ok());
    std::memcpy(memory.value().get(), values.data(),
                values.size() * sizeof(float));
    return memory.value();
  }
  // REQUIRES: nothing is under way.
  static std::vector<float> Values(const DeviceMemory& memory,
                                   std::size_t count) {
    std::vector<float> values(count);
    std::memcpy(values.data(), memory.get(), count * sizeof(float));
    return values;
  }

  static CollectiveCall Allreduce(const DeviceMemory& memory,
                                  std::size_t count) {
    CollectiveCall call;
    call.output = memory.get();
    call.count = count;
    call.channel = Channel::kGradients;
    call.step = 12;
    call.bucket = 34;
    return call;
  }

  void PollUntil(const std::function<bool()>& done) {
    while (!done()) {
      if (!staged_->Poll()) std::this_thread::yield();
    }
  }

  ManualClock clock_;
  FakeDevice device_;
  Fabric fabric_;
  ManualCollective inner_;
  std::unique_ptr<StagedCollective> staged_;
};

}  // namespace gradientflow::testing
