#include "gradientflow/session/profiler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gradientflow/base/manual_clock.h"
#include "gradientflow/planner/text_file.h"
#include "tests/collectives/manual_collective.h"
#include "tests/session/ranks.h"
#include "tests/session/steps.h"

// What a profile says of the steps that it was made from.
namespace gradientflow::testing {
namespace {

planner::Profile Read(const std::string& path) {
  const auto text = planner::ReadTextFile(path);
  EXPECT_TRUE(text.ok()) << text.status().message();
  if (!text.ok()) return {};
  const auto profile = planner::ParseProfile(text.value());
  EXPECT_TRUE(profile.ok()) << profile.status().message();
  return profile.ok() ? profile.value() : planner::Profile();
}

std::string PathOf(const std::string& name) {
  return ::testing::TempDir() + "/" + name;
}

// A backward that is replayed on a clock of its own.
class ProfilerTest : public ::testing::Test {
 protected:
  void Open(int size = 1, int rank = 0) {
    options_.rank = rank;
    options_.size = size;
    if (options_.profile.empty()) options_.profile = PathOf("replayed.json");
    std::remove(options_.profile.c_str());
    layout_ = PoolLayout::Create({300, 20, 1}).value();
    auto opened = Profiler::Open(
        {&options_, &layout_, &names_, &clock_, &collective_, 0});
    ASSERT_TRUE(opened.ok()) << opened.status().message();
    profiler_ = std::move(opened).value();
  }
  void Wait(double seconds) { clock_.Advance(FromSeconds(seconds)); }

  // `factor` stretches what this rank computes. The wait does not count.
  void Step(double factor = 1) {
    profiler_->Send(step_++);
    Wait(0.010 * factor);
    StepMoments moments;
    moments.first_ready = clock_.Now();
    const double ready[] = {0, 0.002 * factor, 0.009 * factor};
    std::copy(std::begin(ready), std::end(ready),
              profiler_->ready_seconds().begin());
    Wait(0.020 * factor);
    moments.over = clock_.Now();
    Wait(0.005);
    moments.end = clock_.Now();
    profiler_->StepEnded(moments);
    EXPECT_TRUE(profiler_->WriteIfDue().ok());
    const Clock::Time begin = clock_.Now();
    Wait(0.003 * factor);
    profiler_->OptimizerRan(begin, clock_.Now());
  }
  bool Written() const { return planner::ReadTextFile(options_.profile).ok(); }

  Options options_;
  PoolLayout layout_;
  std::vector<std::string> names_ = {"first", "second", "third"};
  ManualClock clock_{FromSeconds(5)};
  ManualCollective collective_;
  std::unique_ptr<Profiler> profiler_;
  std::uint64_t step_ = 0;
};

TEST_F(ProfilerTest, IsEqualToWhatWasReplayed) {
  options_.profile_batch = 32;
  options_.pool_dtype = DType::kFloat16;
  Open();
  for (int i = 0; i < 12; ++i) Step();
  profiler_.reset();
  const planner::Profile profile = Read(options_.profile);
  EXPECT_EQ(profile.dtype, "float16");
  EXPECT_EQ(profile.device, "cpu");
  EXPECT_EQ(profile.batch_samples, 32U);
  EXPECT_EQ(profile.ranks, 1U);
  EXPECT_EQ(profile.steps, 10U);
  EXPECT_NEAR(profile.forward_seconds.median, 0.010, 1e-8);
  EXPECT_NEAR(profile.backward_seconds.median, 0.020, 1e-8);
  EXPECT_NEAR(profile.wait_seconds.median, 0.005, 1e-8);
  EXPECT_NEAR(profile.optimizer_seconds.median, 0.003, 1e-8);
  EXPECT_NEAR(profile.step_seconds.median, 0.038, 1e-8);
  EXPECT_NEAR(profile.step_spread_fraction, 0, 1e-6);
  EXPECT_FALSE(profile.rank_spread_fraction.has_value());
  ASSERT_EQ(profile.tensors.size(), 3U);
  EXPECT_EQ(profile.tensors[0].name, "third");  // In pool order.
  EXPECT_EQ(profile.tensors[0].elements, 1U);
  EXPECT_EQ(profile.tensors[2].name, "first");
  EXPECT_EQ(profile.tensors[2].elements, 300U);
  EXPECT_NEAR(profile.tensors[0].ready_seconds.median, 0, 1e-8);
  EXPECT_NEAR(profile.tensors[1].ready_seconds.median, 0.002, 1e-8);
  EXPECT_NEAR(profile.tensors[2].ready_seconds.upper_quartile, 0.009, 1e-8);
}

TEST_F(ProfilerTest, HasMedianQuartilesAndSpreadOfStepsThatVary) {
  Open();
  Step();
  Step();
  // The slowest one was disturbed from outside.
  for (const double factor : {0.8, 1.0, 1.2, 0.9, 1.1, 0.8, 1.0, 1.2, 40.0}) {
    Step(factor);
  }
  profiler_.reset();
  const planner::Profile profile = Read(options_.profile);
  EXPECT_NEAR(profile.backward_seconds.lower_quartile, 0.9 * 0.020, 1e-8);
  EXPECT_NEAR(profile.backward_seconds.median, 1.0 * 0.020, 1e-8);
  EXPECT_NEAR(profile.backward_seconds.upper_quartile, 1.2 * 0.020, 1e-8);
  EXPECT_NEAR(profile.step_spread_fraction, 0.3 / 1.349, 1e-5);
}

TEST_F(ProfilerTest, IsThereBeforeTheJobEnds) {
  Open();
  for (int i = 0; i < 5; ++i) Step();
  EXPECT_FALSE(Written());
  Step();
  EXPECT_EQ(Read(options_.profile).steps, 4U);
  for (int i = 0; i < 5; ++i) Step();
  EXPECT_EQ(Read(options_.profile).steps, 4U);
  Wait(60);
  Step();
  EXPECT_EQ(Read(options_.profile).steps, 10U);
}

TEST_F(ProfilerTest, OfALongRunHasTheLastSteps) {
  Open();
  for (int i = 0; i < 300; ++i) Step(2);
  for (std::size_t i = 0; i < ProfiledSteps::kKept; ++i) Step(1);
  profiler_.reset();
  const planner::Profile profile = Read(options_.profile);
  EXPECT_EQ(profile.steps, ProfiledSteps::kKept);
  EXPECT_NEAR(profile.backward_seconds.upper_quartile, 0.020, 1e-8);
  EXPECT_NEAR(profile.tensors[2].ready_seconds.upper_quartile, 0.009, 1e-8);
}

// Ranks of 33 and 36.3 ms of own work, of which the other one varies by 1.1 ms.
TEST_F(ProfilerTest, HasTheSpreadBetweenRanks) {
  Open(2);
  for (int i = 0; i < 6; ++i) Step();
  EXPECT_FALSE(profiler_->in_flight());
  profiler_->Send(step_);
  ASSERT_TRUE(profiler_->in_flight());
  ASSERT_EQ(collective_.calls.size(), 1U);
  const CollectiveCall call = collective_.calls[0].call;
  ASSERT_EQ(call.count, 4U);
  EXPECT_EQ(call.channel, Channel::kGradients);
  auto* const told = static_cast<double*>(call.output);
  EXPECT_NEAR(told[0], 0.033, 1e-7);
  EXPECT_NEAR(told[1], 0, 1e-7);
  told[2] = 0.0363;
  told[3] = 0.0011;
  collective_.End(0);
  EXPECT_FALSE(profiler_->in_flight());
  profiler_.reset();
  const double between = (0.0363 - 0.033) * (0.0363 - 0.033) / 2;
  const double within = 0.0011 * 0.0011 / 2;
  EXPECT_NEAR(Read(options_.profile).rank_spread_fraction.value_or(0),
              std::sqrt(between + within) / 0.03465, 1e-6);
}

TEST_F(ProfilerTest, IsWrittenByOneRankUnlessTheNameHasTheRank) {
  Open(2, 1);
  for (int i = 0; i < 4; ++i) Step();
  profiler_.reset();
  EXPECT_FALSE(Written());
  options_.profile = PathOf("each%r.json");
  Open(2, 1);
  for (int i = 0; i < 4; ++i) Step();
  profiler_.reset();
  EXPECT_EQ(Read(PathOf("each1.json")).steps, 2U);
}

TEST(Profile, ThatCannotBeWrittenIsRefusedOnEveryRank) {
  Job job;
  job.size = 2;
  job.tensors = SomeTensors();
  job.options.profile = PathOf("no/such/folder/profile.json");
  OpenRanks(job, [](int, Opened opened) {
    ASSERT_FALSE(opened.ok());
    EXPECT_EQ(opened.status().code(), StatusCode::kInvalidArgument);
    EXPECT_NE(opened.status().message().find("profile: cannot write"),
              std::string::npos)
        << opened.status().message();
  });
}

// Sessions have clocks that run, so only what cannot be otherwise is expected.
TEST(Profile, OfASessionHasItsTensorsAndTheTimeOfItsSteps) {
  for (const int size : {1, 3}) {
    Job job;
    job.size = size;
    job.tensors = SomeTensors();
    job.options.profile = PathOf("session" + std::to_string(size) + ".json");
    RunRanks(job, [](GradientSession& session) {
      std::vector<std::vector<float>> weights;
      std::vector<float*> pointers;
      for (std::size_t i = 0; i < session.tensors(); ++i) {
        weights.emplace_back(session.gradient(i).bytes / sizeof(float));
        pointers.push_back(weights.back().data());
      }
      for (int step = 0; step < 10; ++step) {
        ProduceAll(session, step);
        FinishAndCheck(session, step);
        EXPECT_TRUE(session.OptimizerStep(OptimizerOptions(), pointers).ok());
      }
    });
    const planner::Profile profile = Read(job.options.profile);
    EXPECT_EQ(profile.ranks, static_cast<std::size_t>(size));
    EXPECT_EQ(profile.steps, 8U);
    EXPECT_EQ(profile.rank_spread_fraction.has_value(), size > 1);
    ASSERT_EQ(profile.tensors.size(), job.tensors.size());
    EXPECT_EQ(profile.tensors.front().name, job.tensors.back().name);
    EXPECT_EQ(profile.tensors.front().elements, job.tensors.back().elements);
    double before = 0;
    for (const planner::ProfiledTensor& tensor : profile.tensors) {
      EXPECT_GE(tensor.ready_seconds.median, before);
      before = tensor.ready_seconds.median;
    }
    EXPECT_LE(before, profile.backward_seconds.upper_quartile);
    EXPECT_GT(profile.forward_seconds.median, 0);
    EXPECT_GT(profile.optimizer_seconds.median, 0);
    EXPECT_GT(profile.step_seconds.median, profile.backward_seconds.median);
  }
}

// Nothing else asks the device for the end of a step that is left ahead of it.
TEST(Profile, OfStepsThatAreSubmittedAheadIsOfTheirTimes) {
  for (const float sparsity : {0.0F, 0.5F}) {
    Job job;
    job.over = Over::kNccl;
    job.size = 2;
    job.tensors = SomeTensors();
    job.options.sparsity = sparsity;
    job.options.chunk_elements = 1000;
    job.options.profile = PathOf("ahead.json");
    RunRanks(job, [](GradientSession& session) {
      for (int step = 0; step < 10; ++step) {
        ASSERT_TRUE(StreamOfThisRank()->Synchronize().ok());
        ProduceAll(session, step);
        const Result<AsyncStep> left = session.FinishStepAsync();
        ASSERT_TRUE(left.ok()) << left.status().ToString();
        ASSERT_TRUE(left.value().known.has_value());
        EXPECT_EQ(left.value().known->step, static_cast<std::uint64_t>(step));
      }
    });
    EXPECT_EQ(Read(job.options.profile).steps, 8U);
  }
}

}  // namespace
}  // namespace gradientflow::testing
