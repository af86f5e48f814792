#include "benchmarks/training/network.h"

#include <cmath>
#include <numeric>
#include <vector>

#include "benchmarks/lib/random.h"
#include "gtest/gtest.h"

namespace gradientflow::benchmarks {
namespace {

template <typename Real>
struct Batch {
  std::vector<Real> inputs;
  std::vector<int> labels;
};

template <typename Real>
Batch<Real> RandomBatch(std::size_t samples, std::size_t inputs, int classes) {
  Random random(17);
  Batch<Real> batch;
  for (std::size_t i = 0; i < samples * inputs; ++i) {
    // Some exact zeros, as in the digits.
    const double x = random.Uniform();
    batch.inputs.push_back(static_cast<Real>(x < 0.2 ? 0 : x));
  }
  for (std::size_t s = 0; s < samples; ++s) {
    batch.labels.push_back(
        static_cast<int>(random.Bits() % static_cast<unsigned>(classes)));
  }
  return batch;
}

template <typename Real>
std::vector<std::vector<Real>> Gradients(Network<Real>& network,
                                         const Batch<Real>& batch, Real scale,
                                         std::vector<std::size_t>* order) {
  std::vector<std::vector<Real>> gradients;
  for (const auto& tensor : network.tensors()) {
    // Backward() overwrites, so the old values must not matter.
    gradients.emplace_back(tensor.values.size(), Real{99});
  }
  network.Forward(batch.inputs, batch.labels);
  network.Backward(
      scale, [&](std::size_t i) { return gradients[i].data(); },
      [&](std::size_t i) {
        if (order != nullptr) order->push_back(i);
      });
  return gradients;
}

TEST(Network, GradientsAreTheSlopesOfTheLoss) {
  const std::vector<std::vector<std::size_t>> shapes = {
      {5, 3}, {7, 6, 4}, {9, 8, 11, 5}};
  for (const auto& widths : shapes) {
    Network<double> network(widths, 3);
    const auto batch =
        RandomBatch<double>(6, widths[0], static_cast<int>(widths.back()));
    const double scale = 0.7;
    const auto gradients = Gradients(network, batch, scale, nullptr);
    constexpr double kStep = 1e-6;
    for (std::size_t t = 0; t < gradients.size(); ++t) {
      for (std::size_t e = 0; e < gradients[t].size(); ++e) {
        double& weight = network.tensors()[t].values[e];
        const double was = weight;
        weight = was + kStep;
        const double above = network.Forward(batch.inputs, batch.labels);
        weight = was - kStep;
        const double below = network.Forward(batch.inputs, batch.labels);
        weight = was;
        EXPECT_NEAR(gradients[t][e], scale * (above - below) / (2 * kStep),
                    1e-7)
            << network.tensors()[t].name << "[" << e << "]";
      }
    }
  }
}

TEST(Network, Float32FollowsFloat64) {
  const std::vector<std::size_t> widths = {64, 128, 128, 10};
  Network<float> single(widths, 5);
  Network<double> exact(widths, 5);
  for (std::size_t t = 0; t < exact.tensors().size(); ++t) {
    const auto& values = single.tensors()[t].values;
    exact.tensors()[t].values.assign(values.begin(), values.end());
  }
  const auto batch = RandomBatch<float>(33, 64, 10);
  const Batch<double> same{{batch.inputs.begin(), batch.inputs.end()},
                           batch.labels};
  const auto rough = Gradients(single, batch, 1.0F, nullptr);
  const auto fine = Gradients(exact, same, 1.0, nullptr);
  for (std::size_t t = 0; t < fine.size(); ++t) {
    for (std::size_t e = 0; e < fine[t].size(); ++e) {
      ASSERT_NEAR(rough[t][e], fine[t][e], 2e-4) << "tensor " << t;
    }
  }
}

TEST(Network, GradientsBecomeReadyFromTheLastTensorToTheFirst) {
  Network<float> network({8, 6, 5, 3}, 1);
  std::vector<std::size_t> order;
  Gradients(network, RandomBatch<float>(4, 8, 3), 1.0F, &order);
  std::vector<std::size_t> expected(network.tensors().size());
  std::iota(expected.rbegin(), expected.rend(), std::size_t{0});
  EXPECT_EQ(order, expected);
}

TEST(Network, SumsOverSamplesSoThatShardsAddUp) {
  Network<double> network({8, 6, 3}, 1);
  const auto all = RandomBatch<double>(10, 8, 3);
  const Batch<double> first{{all.inputs.begin(), all.inputs.begin() + 24},
                            {all.labels.begin(), all.labels.begin() + 3}};
  const Batch<double> rest{{all.inputs.begin() + 24, all.inputs.end()},
                           {all.labels.begin() + 3, all.labels.end()}};
  const auto whole = Gradients(network, all, 1.0, nullptr);
  const auto one = Gradients(network, first, 1.0, nullptr);
  const auto other = Gradients(network, rest, 1.0, nullptr);
  for (std::size_t t = 0; t < whole.size(); ++t) {
    for (std::size_t e = 0; e < whole[t].size(); ++e) {
      ASSERT_NEAR(whole[t][e], one[t][e] + other[t][e], 1e-12);
    }
  }
}

TEST(Network, LossOfEvenOddsIsTheLogarithmOfTheClasses) {
  Network<double> network({4, 10}, 1);
  for (auto& tensor : network.tensors()) {
    for (double& value : tensor.values) value = 0;
  }
  const auto batch = RandomBatch<double>(7, 4, 10);
  EXPECT_NEAR(network.Forward(batch.inputs, batch.labels), 7 * std::log(10),
              1e-12);
}

TEST(Network, CountsTheSamplesPutIntoTheirClass) {
  Network<double> network({2, 2}, 1);
  network.tensors()[0].values = {1, 0, 0, 1};
  const std::vector<double> inputs = {2, 1, 1, 2, 3, 0};
  network.Forward(inputs, std::vector<int>{0, 1, 1});
  EXPECT_EQ(network.correct(), 2U);
}

TEST(Network, StartsAlikeForTheSameSeedOnly) {
  Network<float> a({6, 5, 4}, 7);
  Network<float> b({6, 5, 4}, 7);
  Network<float> c({6, 5, 4}, 8);
  EXPECT_EQ(a.tensors()[0].values, b.tensors()[0].values);
  EXPECT_NE(a.tensors()[0].values, c.tensors()[0].values);
}

}  // namespace
}  // namespace gradientflow::benchmarks
