#pragma once

#include <stdexcept>
#include <utility>

#include "gradientflow/base/status.h"

namespace gradientflow::benchmarks {

// A benchmark ends at its first error. Must() throws what went wrong as a
// std::runtime_error, or returns the value; the program's main() prints it.
inline void Must(const Status& status) {
  if (!status.ok()) throw std::runtime_error(status.ToString());
}
template <typename T>
T Must(Result<T> result) {
  Must(result.status());
  return std::move(result).value();
}

}  // namespace gradientflow::benchmarks
