#include "gradientflow/buckets/pool_layout.h"

#include <algorithm>
#include <cassert>
#include <limits>

#include "gradientflow/base/str_cat.h"

namespace gradientflow {
namespace {

// With this limit, the bytes of any element type fit in a size_t.
constexpr std::size_t kMaxElements =
    std::numeric_limits<std::size_t>::max() / sizeof(double);

}  // namespace

Result<PoolLayout> PoolLayout::Create(
    const std::vector<std::size_t>& tensor_elements) {
  const std::size_t tensors = tensor_elements.size();
  PoolLayout layout;
  layout.offset_.resize(tensors);
  layout.order_.reserve(tensors);
  layout.end_.reserve(tensors);
  std::size_t end = 0;
  for (std::size_t i = tensors; i-- > 0;) {
    layout.offset_[i] = end;
    if (tensor_elements[i] > kMaxElements - end) {
      return Status(
          StatusCode::kInvalidArgument,
          StrCat("gradient pool: expected at most ", kMaxElements,
                 " elements, but tensor ", i, " has ", tensor_elements[i],
                 " and the tensors after it have ", end));
    }
    end += tensor_elements[i];
    layout.order_.push_back(i);
    layout.end_.push_back(end);
  }
  return layout;
}

std::vector<TensorPart> PoolLayout::Parts(Extent range) const {
  std::vector<TensorPart> parts;
  AppendParts(range, &parts);
  return parts;
}

// end_ ascends with the position in the pool, so binary search finds the first
// tensor that reaches into the range.
void PoolLayout::AppendParts(Extent range,
                             std::vector<TensorPart>* parts) const {
  assert(range.begin <= elements());
  assert(range.count <= elements() - range.begin);
  const std::size_t range_end = range.begin + range.count;
  const auto first = std::upper_bound(end_.begin(), end_.end(), range.begin);
  std::size_t position = static_cast<std::size_t>(first - end_.begin());
  std::size_t begin = range.begin;
  while (begin < range_end) {
    const std::size_t tensor = order_[position];
    const std::size_t end = std::min(range_end, end_[position]);
    if (end > begin) {
      parts->push_back({tensor, begin - offset_[tensor], begin, end - begin});
    }
    begin = end;
    ++position;
  }
}

}  // namespace gradientflow
