#include <gtest/gtest.h>

#include <cstddef>
#include <latch>
#include <vector>

#include "gradientflow/base/status.h"
#include "gradientflow/collectives/choose.h"
#include "gradientflow/collectives/collective.h"
#include "tests/collectives/executor_ranks.h"
#include "transports/arena.h"
#include "transports/fabric.h"

// A rank that ends a call over shared memory and then fails has failed in a
// later call: its peers, which may be slower, end the first call well.
namespace gradientflow::testing {
namespace {

int Published(const TestRank& rank) {
  int published = 0;
  for (int slot = 0; slot < kSyncSlots; ++slot) {
    published += rank.arena()->slot(rank.rank(), slot).arrived.load() > 0;
  }
  return published;
}

class Call {
 public:
  explicit Call(TestRank& rank)
      : values_(Contribution(rank.rank(), 257, 1)), rank_(rank) {
    CollectiveCall call;
    call.kind = CollectiveKind::kAllreduce;
    call.count = values_.size();
    call.algorithm = ParseAllreduceAlgorithm("shared").value();
    call.output = reinterpret_cast<std::byte*>(values_.data());
    rank.executor().Start(call, ending_.done());
  }

  void Drive() {
    rank_.Drive([this] { return ending_.over(); });
  }
  const Status& status() const { return ending_.status; }
  void ExpectSum() const {
    EXPECT_TRUE(Near(values_, ExactSum(2, values_.size(), 1, 1.0), 24, 2));
  }

 private:
  std::vector<float> values_;
  TestRank& rank_;
  Ending ending_;
};

TEST(LastSync, CountsEvenIfItsRankHasFailedSince) {
  std::latch one_waits(1);
  std::latch zero_waits(1);
  std::latch one_failed(1);
  OnRanks({.size = 2}, [&](TestRank& rank) {
    if (rank.rank() == 1) {
      Call first(rank);
      rank.Drive([&] { return Published(rank) == 1; });
      one_waits.count_down();
      zero_waits.wait();
      first.Drive();
      EXPECT_TRUE(first.status().ok()) << first.status().message();
      first.ExpectSum();
      Call second(rank);
      rank.Drive([&] { return Published(rank) == 3; });
      rank.fabric().Fail(Status(StatusCode::kAborted, "rank 1 gives up"));
      second.Drive();
      EXPECT_EQ(second.status().code(), StatusCode::kAborted);
      EXPECT_EQ(Published(rank), 2) << "the second call is taken back";
      one_failed.count_down();
      return;
    }
    one_waits.wait();
    Call first(rank);
    // It has done its share, and waits for rank 1's.
    rank.Drive([&] { return Published(rank) == 2; });
    zero_waits.count_down();
    one_failed.wait();
    first.Drive();
    EXPECT_TRUE(first.status().ok()) << first.status().message();
    first.ExpectSum();
    Call second(rank);
    second.Drive();
    EXPECT_EQ(second.status().message(), "rank 1 gives up");
  });
}

}  // namespace
}  // namespace gradientflow::testing
