#pragma once

#include <cstddef>
#include <vector>

#include "gradientflow/collectives/collective.h"

// Plain calls for tests of what is around them.
namespace gradientflow::testing {

// Adds up `data` over all ranks, in place.
inline CollectiveCall Sum(std::vector<double>* data) {
  CollectiveCall call;
  call.output = data->data();
  call.count = data->size();
  call.dtype = call.wire = DType::kFloat64;
  return call;
}

inline std::vector<double> Filled(std::size_t count, double value) {
  return std::vector<double>(count, value);
}

}  // namespace gradientflow::testing
