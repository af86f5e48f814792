#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <functional>
#include <span>
#include <tuple>
#include <vector>

#include "gradientflow/session.h"
#include "tests/session/ranks.h"

// Steps with known gradients, and therefore known means.
namespace gradientflow::testing {

class Steps : public ::testing::TestWithParam<std::tuple<Over, int>> {
 protected:
  // Eleven tensors of float32, "weight0", ...: small, large, empty.
  static Job MakeJob();
};

// The jobs over which a suite runs that is Steps or derived from it. Each suite
// runs over them once per program.
#define GF_INSTANTIATE_STEPS(suite)                                         \
  INSTANTIATE_TEST_SUITE_P(                                                 \
      InProcess, suite,                                                     \
      ::testing::Combine(                                                   \
          ::testing::Values(Over::kMemory, Over::kMessages, Over::kDevices, \
                            Over::kSomeDevices, Over::kNccl),               \
          ::testing::Values(2, 3)),                                         \
      ParamName);                                                           \
  INSTANTIATE_TEST_SUITE_P(Joined, suite,                                   \
                           ::testing::Values(std::tuple{Over::kTcp, 2},     \
                                             std::tuple{Over::kMixed, 3}),  \
                           ParamName)

std::vector<TensorSpec> SomeTensors();
std::vector<std::size_t> AllTensors(const GradientSession& session);

// The gradient as float32. REQUIRES: the pool has float32.
std::span<float> Floats(const GradientSession& session, std::size_t tensor);

// What `rank` computes: multiples of 1/64 up to 1, which are exact in float16,
// as are sums of a few.
float Gradient(int rank, std::size_t tensor, std::size_t i, int step);

// Fill() writes the tensor's gradient, times `loss_scale`; Produce() also marks
// it ready; ProduceAll() does so for all tensors, last first.
void Fill(GradientSession& session, std::size_t tensor, int step,
          float loss_scale = 1.0F);
void Produce(GradientSession& session, std::size_t tensor, int step,
             float loss_scale = 1.0F);
void ProduceAll(GradientSession& session, int step, float loss_scale = 1.0F);

// Expects every element to be the mean over the ranks; ranks for which
// `takes_part` is false count as zeros.
void ExpectMean(GradientSession& session, std::size_t tensor, int step,
                const std::function<bool(int)>& takes_part,
                double tolerance = 1e-7);

StepStats FinishAndCheck(GradientSession& session, int step,
                         double tolerance = 1e-7);

}  // namespace gradientflow::testing
