#include "benchmarks/allreduce/sizes.h"

#include <algorithm>

#include "gradientflow/base/str_cat.h"

namespace gradientflow::benchmarks {

Result<std::vector<std::size_t>> Sizes(std::size_t min_bytes,
                                       std::size_t max_bytes, double factor,
                                       std::size_t element_bytes) {
  if (factor <= 1 || min_bytes > max_bytes || max_bytes < element_bytes) {
    return Status(StatusCode::kInvalidArgument,
                  StrCat("sizes from ", min_bytes, " to ", max_bytes,
                         " bytes by ", factor,
                         ": expected min <= max, room "
                         "for an element and a factor above 1"));
  }
  std::vector<std::size_t> sizes;
  auto size = static_cast<double>(std::max(min_bytes, element_bytes));
  for (; size <= static_cast<double>(max_bytes); size *= factor) {
    const auto bytes = static_cast<std::size_t>(size);
    const std::size_t whole = bytes / element_bytes * element_bytes;
    if (sizes.empty() || sizes.back() != whole) sizes.push_back(whole);
  }
  return sizes;
}

int IterationsFor(std::size_t bytes) {
  constexpr std::size_t kBatchBytes = std::size_t{64} << 20;
  return static_cast<int>(std::clamp<std::size_t>(
      kBatchBytes / std::max<std::size_t>(bytes, 1), 3, 1000));
}

}  // namespace gradientflow::benchmarks
