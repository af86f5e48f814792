#include <gtest/gtest.h>

#include <cstddef>
#include <functional>
#include <string>
#include <tuple>
#include <vector>

#include "tests/session/steps.h"

// Groups of tensors with settings of their own, against one group of all.
namespace gradientflow::testing {
namespace {

using Weights = std::vector<std::vector<float>>;
// The group of tensor i: an index of `configs`, or -1.
struct Groups {
  std::vector<OptimizerOptions> configs;
  std::function<int(std::size_t)> of = [](std::size_t) { return 0; };
};

Weights Start(const std::vector<TensorSpec>& tensors) {
  Weights weights;
  for (const TensorSpec& tensor : tensors) {
    std::vector<float>& one = weights.emplace_back();
    for (std::size_t e = 0; e < tensor.elements; ++e) {
      one.push_back(1.0F + 0.25F * static_cast<float>(e % 7));
    }
  }
  return weights;
}

// The weights of rank 0 after some steps.
Weights Train(const Job& job, const Groups& groups) {
  Weights trained;
  RunRanks(job, [&](GradientSession& session) {
    Weights weights = Start(job.tensors);
    std::vector<OptimizerGroup> given;
    for (const OptimizerOptions& config : groups.configs) {
      given.push_back({config, std::vector<float*>(weights.size())});
    }
    for (std::size_t i = 0; i < weights.size(); ++i) {
      if (groups.of(i) < 0) continue;
      given[static_cast<std::size_t>(groups.of(i))].weights[i] =
          weights[i].data();
    }
    for (int step = 0; step < 4; ++step) {
      ProduceAll(session, step);
      ASSERT_TRUE(session.FinishStep().ok());
      const Status status = session.OptimizerStep(given);
      ASSERT_TRUE(status.ok()) << status.message();
      // The device finishes the update before the gradients are written again.
      ASSERT_TRUE(session.SaveState().ok());
    }
    if (session.rank() == 0) trained = weights;
  });
  return trained;
}

class OptimizerGroups : public ::testing::TestWithParam<std::tuple<Over, int>> {
 protected:
  static Job MakeJob(float sparsity) {
    Job job;
    std::tie(job.over, job.size) = GetParam();
    job.weights_on_host = true;
    job.tensors = SomeTensors();
    job.tensors[0].skip_lars = true;
    job.options.sparsity = sparsity;
    job.options.chunk_elements = 50;
    return job;
  }
};

TEST_P(OptimizerGroups, AreAsIfEachTensorHadTrainedInOneGroup) {
  using Kind = OptimizerOptions::Kind;
  const OptimizerOptions slow{.lr = 0.01F, .weight_decay = 0.1F};
  const OptimizerOptions fast{.lr = 0.3F, .nesterov = true};
  const OptimizerOptions lars{.kind = Kind::kLars, .lr = 2.0F};
  for (const float sparsity : {0.0F, 0.6F}) {
    const Job job = MakeJob(sparsity);
    const std::vector<OptimizerOptions> configs = {slow, fast, lars, slow};
    Weights alone[] = {
        Train(job, {{slow}}), Train(job, {{fast}}), Train(job, {{lars}}), {}};
    alone[3] = alone[0];
    const Weights start = Start(job.tensors);
    const auto of = [](std::size_t i) { return static_cast<int>(i % 5) - 1; };
    const Weights together = Train(job, {configs, of});
    ASSERT_EQ(together.size(), start.size());
    for (std::size_t i = 0; i < start.size(); ++i) {
      const Weights& expected = of(i) < 0 ? start : alone[of(i)];
      EXPECT_EQ(together[i], expected[i]) << "tensor " << i;
      if (of(i) >= 0 && !start[i].empty()) {
        EXPECT_NE(together[i], start[i]);
      }
    }
  }
}

TEST_P(OptimizerGroups, RefuseATensorInTwo) {
  RunRanks(MakeJob(0), [&](GradientSession& session) {
    Weights weights = Start(SomeTensors());
    std::vector<float*> pointers;
    for (std::vector<float>& one : weights) pointers.push_back(one.data());
    ProduceAll(session, 0);
    ASSERT_TRUE(session.FinishStep().ok());
    const Status status = session.OptimizerStep(
        std::vector<OptimizerGroup>{{{}, pointers}, {{}, pointers}});
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find("in two groups"), std::string::npos);
    EXPECT_EQ(weights, Start(SomeTensors()));
    EXPECT_TRUE(session.OptimizerStep({}, pointers).ok());
    // The device finishes before the weights are freed.
    EXPECT_TRUE(session.SaveState().ok());
  });
}

INSTANTIATE_TEST_SUITE_P(Everywhere, OptimizerGroups,
                         ::testing::Values(std::tuple{Over::kMemory, 2},
                                           std::tuple{Over::kDevices, 2},
                                           std::tuple{Over::kMessages, 3}),
                         ParamName);

}  // namespace
}  // namespace gradientflow::testing
