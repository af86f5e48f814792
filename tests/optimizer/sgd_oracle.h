#pragma once

#include <cmath>
#include <cstddef>
#include <random>
#include <vector>

#include "gradientflow/buckets/pool_layout.h"
#include "gradientflow/optimizer/optimizer_options.h"
#include "tests/csc/gradients.h"

namespace gradientflow::testing {

// Tensors of float32 weights, by forward index.
class Weights {
 public:
  Weights(const PoolLayout& layout, std::mt19937& random) {
    for (std::size_t i = 0; i < layout.tensors(); ++i) {
      tensors_.push_back(RandomFloats(layout.tensor_elements(i), random));
    }
  }
  std::vector<float*> pointers() {
    std::vector<float*> pointers;
    for (auto& tensor : tensors_) pointers.push_back(tensor.data());
    return pointers;
  }
  const std::vector<float>& operator[](std::size_t i) const {
    return tensors_[i];
  }
  bool operator==(const Weights&) const = default;

 private:
  std::vector<std::vector<float>> tensors_;
};

// The formulas of optimizer/optimizer.h, element by element in float64.
struct SgdOracle {
  std::vector<double> momentum;                // Pool order.
  std::vector<std::vector<double>> weights;    // By tensor.
  std::vector<std::vector<std::size_t>> pool;  // Place of each element.
  std::vector<bool> skip_lars;

  SgdOracle(const PoolLayout& layout, const Weights& start)
      : momentum(layout.elements()), skip_lars(layout.tensors()) {
    for (std::size_t i = 0; i < layout.tensors(); ++i) {
      weights.emplace_back(start[i].begin(), start[i].end());
      pool.emplace_back();
      for (std::size_t e = 0; e < layout.tensor_elements(i); ++e) {
        pool.back().push_back(layout.offset(i) + e);
      }
    }
  }

  double Rate(const OptimizerOptions& config, std::size_t tensor,
              const std::vector<float>& g, const std::vector<bool>& sent) {
    if (config.kind == OptimizerOptions::Kind::kSgd || skip_lars[tensor]) {
      return config.lr;
    }
    double w2 = 0;
    double g2 = 0;
    for (std::size_t e = 0; e < weights[tensor].size(); ++e) {
      const std::size_t at = pool[tensor][e];
      w2 += weights[tensor][e] * weights[tensor][e];
      if (sent[at]) g2 += double{g[at]} * g[at];
    }
    if (w2 == 0 || g2 == 0) return config.lr;
    return config.lr * config.lars_eta * std::sqrt(w2) /
           (std::sqrt(g2) + config.weight_decay * std::sqrt(w2) +
            config.lars_eps);
  }

  void Update(const OptimizerOptions& config, const std::vector<float>& g,
              const std::vector<bool>& sent) {
    for (std::size_t i = 0; i < weights.size(); ++i) {
      const double rate = Rate(config, i, g, sent);
      for (std::size_t e = 0; e < weights[i].size(); ++e) {
        const std::size_t at = pool[i][e];
        if (!sent[at]) continue;
        double& w = weights[i][e];
        double& hu = momentum[at];
        const double step = rate * (g[at] + double{config.weight_decay} * w);
        hu = config.momentum * hu + step;
        w -= config.nesterov ? config.momentum * hu + step : hu;
      }
    }
  }
};

}  // namespace gradientflow::testing
