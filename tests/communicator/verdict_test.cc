#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "gradientflow/base/status.h"
#include "gradientflow/collectives/call_plan.h"
#include "gradientflow/communicator/neighbours.h"
#include "tests/transports/fabric_ranks.h"
#include "transports/fabric.h"
#include "transports/link.h"
#include "transports/link_source.h"

// How fast a verdict spreads among ranks that are linked to their neighbours
// only, each on a host of its own. Time is counted in rounds: in each, every
// rank looks once at its links, in an order of its own.
namespace gradientflow {
namespace {

constexpr int kRanks = 64;
constexpr int kLog = 6;

// Makes no links.
class NoSource final : public LinkSource {
 public:
  Status Learn(const std::vector<std::string>&) override { return Status(); }
  void Dial(int) override {}
  std::string AddressOf(int) const override { return "nowhere"; }
  std::string TroubleWith(int) const override { return ""; }
  bool Poll() override { return false; }
  bool busy() const override { return false; }
  std::chrono::nanoseconds Patience() const override {
    return std::chrono::seconds(1);
  }
};

class Verdict : public ::testing::Test, protected testing::FabricRanks {
 protected:
  Verdict() {
    CallGroup group;
    group.size = kRanks;
    group.topology.host.resize(kRanks);
    std::iota(group.topology.host.begin(), group.topology.host.end(), 0);
    Make(kRanks, {}, [&](Fabric* fabric, auto all) {
      std::vector<std::unique_ptr<Link>> near(all.size());
      for (const int r : NeighboursOf(group, fabric->rank(), true)) {
        near[static_cast<std::size_t>(r)] =
            std::move(all[static_cast<std::size_t>(r)]);
      }
      fabric->Connect(std::move(near), std::make_unique<NoSource>());
    });
  }
  // Returns after how many rounds no rank goes on; gives up after some.
  int RoundsUntilAllKnow() {
    std::vector<int> order(kRanks);
    std::iota(order.begin(), order.end(), 0);
    for (int round = 1; round <= 4 * kLog; ++round) {
      std::shuffle(order.begin(), order.end(), random_);
      bool all = true;
      for (const int r : order) {
        auto& fabric = fabrics[static_cast<std::size_t>(r)];
        if (fabric == nullptr) continue;
        fabric->Poll();
        all &= !fabric->status().ok();
      }
      if (all) return round;
    }
    return 1 << 10;
  }

  std::minstd_rand random_{64};
};

TEST_F(Verdict, ReachesAllRanksInRoundsOfTheLogarithm) {
  PollAll(3);
  at(5).Fail(Status(StatusCode::kUnavailable, "rank 9 (there) has gone"));
  EXPECT_LE(RoundsUntilAllKnow(), kLog);
  for (const auto& fabric : fabrics) {
    EXPECT_NE(fabric->status().message().find("rank 9 (there)"),
              std::string::npos)
        << fabric->status().message();
  }
}

}  // namespace
}  // namespace gradientflow
