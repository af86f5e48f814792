#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "benchmarks/faults/campaign.h"
#include "tests/faults/scenario.h"

namespace gradientflow::faults {
namespace {

class RandomFaults : public ::testing::TestWithParam<JobFabric> {};

TEST_P(RandomFaults, EndInCleanErrorsOnAllSurvivors) {
  const Folder folder;
  CampaignConfig config;
  config.count = 20;
  config.fabrics = {GetParam()};
  config.seed = 7;
  config.heartbeat_timeout_seconds = 1;
  config.folder = folder.url().substr(7);
  const CampaignTotals totals = RunCampaign(
      config, [](int index, const Draw& draw, const TrialResult& result) {
        EXPECT_TRUE(IsGood(result.verdict))
            << "#" << index << " " << Describe(draw) << ", hit in "
            << Name(result.phase) << " of step " << result.step << ": "
            << Name(result.verdict) << "; " << result.what;
        for (const std::string& left : result.leftovers) {
          ADD_FAILURE() << "#" << index << " left behind: " << left;
        }
      });
  EXPECT_TRUE(totals.Good()) << totals.Summary();
  EXPECT_GT(totals.count(Verdict::kClean), 10) << totals.Summary();
}

// What may let the others succeed is told by what was handed in, not by how far
// the rank itself had come to say so.
TEST(HadDoneItsPart, OnceEveryTensorOfTheLastStepIsHandedIn) {
  const JobConfig job;
  const std::size_t tensors = job.tensor_elements.size();
  RankReport report;
  const auto at = [&](Phase phase, std::uint64_t step, std::size_t handed_in) {
    report.phase.store(phase);
    report.step.store(step);
    report.handed_in.store(handed_in);
    return HadDoneItsPart(job, report);
  };
  EXPECT_FALSE(at(Phase::kOpening, 0, 0));
  EXPECT_FALSE(at(Phase::kBackward, job.steps - 1, tensors - 1));
  EXPECT_TRUE(at(Phase::kBackward, job.steps - 1, tensors));
  EXPECT_FALSE(at(Phase::kBackward, job.steps - 2, tensors));
  EXPECT_FALSE(at(Phase::kBetween, job.steps - 2, tensors));
  EXPECT_TRUE(at(Phase::kFinishing, job.steps - 1, tensors));
  EXPECT_TRUE(at(Phase::kClosing, job.steps - 1, tensors));
}

INSTANTIATE_TEST_SUITE_P(Fabrics, RandomFaults,
                         ::testing::Values(JobFabric::kTcp, JobFabric::kShm,
                                           JobFabric::kMixed),
                         [](const auto& test) {
                           return std::string(Name(test.param));
                         });

}  // namespace
}  // namespace gradientflow::faults
