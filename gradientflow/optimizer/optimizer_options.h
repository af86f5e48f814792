#pragma once

#include <cstdint>
#include <vector>

namespace gradientflow {

// Momentum SGD, or LARS, over the pool. See optimizer/optimizer.h.
struct OptimizerOptions {
  enum class Kind : std::uint8_t { kSgd, kLars } kind = Kind::kSgd;
  float lr = 0.01F;
  float momentum = 0.9F;
  float weight_decay = 0.0F;
  bool nesterov = false;
  float lars_eta = 0.001F;  // Trust coefficient.
  float lars_eps = 1e-8F;
};

// Tensors that are updated with the same configuration.
struct OptimizerGroup {
  OptimizerOptions config;
  // weights[i] are tensor i's, in float32. Null if the tensor belongs to
  // another group, or is to be left alone together with its momentum.
  std::vector<float*> weights;
};

}  // namespace gradientflow
