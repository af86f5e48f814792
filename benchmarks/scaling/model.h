#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "gradientflow/session.h"
#include "nlohmann/json.hpp"

namespace gradientflow::benchmarks {

struct ModelTensor {
  std::string name;
  std::size_t elements = 0;
  // When the gradient is complete, after backward began.
  double ready_seconds = 0;
};

// One training iteration of a network on one V100, as benchmarks/lib/models.py
// makes it from the tables in benchmarks/data.
struct Model {
  std::string name;
  // In forward order. Their gradients become ready from the last to the first.
  std::vector<ModelTensor> tensors;
  double backward_seconds = 0;
  double rest_seconds = 0;  // Forward and update: all but backward.

  std::size_t elements() const {
    std::size_t sum = 0;
    for (const ModelTensor& tensor : tensors) sum += tensor.elements;
    return sum;
  }
  // The tensors, as a session is told of them.
  std::vector<TensorSpec> Specs() const {
    std::vector<TensorSpec> specs;
    for (const ModelTensor& tensor : tensors)
      specs.push_back({tensor.name, tensor.elements});
    return specs;
  }
};

// A plan in JSON is turned into a Model by json.get<Model>(), which throws if
// it is not such a plan.
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(ModelTensor, name, elements, ready_seconds)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Model, name, tensors, backward_seconds,
                                   rest_seconds)

}  // namespace gradientflow::benchmarks
