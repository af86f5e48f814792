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
  std::vector<ModelTensor> tensors;  // In forward order.
  int batch = 0;
  double backward_seconds = 0;
  double rest_seconds = 0;  // Forward and update: all but backward.

  std::size_t elements() const;
  // The tensors, as a session is told of them.
  std::vector<TensorSpec> Specs() const;
  // Indices into `tensors`, in the order in which gradients become ready; last
  // to first among those that are ready at the same time.
  std::vector<std::size_t> ReadyOrder() const;
};

// A plan in JSON is turned into a Model by json.get<Model>(), which throws if
// it is not such a plan.
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(ModelTensor, name, elements, ready_seconds)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Model, name, tensors, batch,
                                   backward_seconds, rest_seconds)

}  // namespace gradientflow::benchmarks
