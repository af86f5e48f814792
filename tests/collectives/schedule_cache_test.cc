#include "gradientflow/collectives/schedule_cache.h"

#include <gtest/gtest.h>

#include <memory>

namespace gradientflow {
namespace {

class ScheduleCacheTest : public ::testing::Test {
 protected:
  ScheduleCacheTest() {
    group_.size = 4;
    call_.count = 100;
  }
  std::shared_ptr<const Schedule> Get(std::size_t count = 100) {
    CallPlanner planner(group_, CostModels(), Cutting());
    return cache_.Get(call_, planner.Plan(call_), group_, count);
  }

  CallGroup group_;
  CollectiveCall call_;
  ScheduleCache cache_;
};

TEST_F(ScheduleCacheTest, ACallThatIsRepeatedGetsTheSameSchedule) {
  const auto first = Get();
  EXPECT_EQ(Get(), first);
  EXPECT_NE(Get(99), first);
  call_.wire = call_.dtype = DType::kFloat64;
  EXPECT_NE(Get(), first) << "its elements are wider";
}

TEST_F(ScheduleCacheTest, ForgetsTheSchedulesOfAGroup) {
  const auto of_all = Get();
  call_.group = 5;
  const auto of_group = Get();
  EXPECT_NE(of_group, of_all) << "groups have schedules of their own";
  cache_.Forget(5);
  EXPECT_NE(Get(), of_group);
  call_.group = 0;
  EXPECT_EQ(Get(), of_all);
  cache_.Clear();
  EXPECT_NE(Get(), of_all);
}

TEST_F(ScheduleCacheTest, KeepsNoSchedulesOfUnequalBlocks) {
  call_.kind = CollectiveKind::kAllgather;
  call_.recv_counts = {100, 0, 7, 1};
  EXPECT_NE(Get(), Get());
}

}  // namespace
}  // namespace gradientflow
