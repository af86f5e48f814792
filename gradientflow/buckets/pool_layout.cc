#include "gradientflow/buckets/pool_layout.h"

#include <algorithm>
#include <cassert>
#include <limits>
#include <numeric>

#include "gradientflow/base/str_cat.h"

namespace gradientflow {
namespace {

// With this limit, the bytes of any element type fit in a size_t.
constexpr std::size_t kMaxElements =
    std::numeric_limits<std::size_t>::max() / sizeof(double);

// Vectors of the kernels are 16 bytes (a GPU's load) to 64 (AVX-512). A GPU
// moves lines of 128 bytes, and a CPU fetches its lines of 64 in pairs.
constexpr std::size_t kLeastAlignBytes = 16;
constexpr std::size_t kBestAlignBytes = 128;
// The best alignment is chosen if its padding is less than this part of the
// gradients.
constexpr std::size_t kGradientsPerPadding = 100;

std::size_t RoundUp(std::size_t n, std::size_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}

}  // namespace

Result<PoolLayout> PoolLayout::Create(
    const std::vector<std::size_t>& tensor_elements,
    std::size_t align_elements) {
  assert(align_elements >= 1);
  const std::size_t tensors = tensor_elements.size();
  PoolLayout layout;
  layout.align_elements_ = align_elements;
  layout.offset_.resize(tensors);
  layout.order_.reserve(tensors);
  layout.end_.reserve(tensors);
  std::size_t end = 0;
  for (std::size_t i = tensors; i-- > 0;) {
    const std::size_t count = tensor_elements[i];
    // An empty tensor needs no padding, and so cannot add any to the pool.
    const std::size_t begin = count == 0 ? end : RoundUp(end, align_elements);
    if (begin > kMaxElements || count > kMaxElements - begin) {
      return Status(StatusCode::kInvalidArgument,
                    StrCat("gradient pool: expected at most ", kMaxElements,
                           " elements, but tensor ", i, " has ", count,
                           " and the tensors after it have ", begin));
    }
    end = begin + count;
    layout.offset_[i] = begin;
    layout.order_.push_back(i);
    layout.end_.push_back(end);
  }
  return layout;
}

Result<PoolLayout> PoolLayout::Aligned(
    const std::vector<std::size_t>& tensor_elements,
    std::size_t element_bytes) {
  assert(element_bytes >= 1 && element_bytes <= kLeastAlignBytes);
  Result<PoolLayout> best =
      Create(tensor_elements, kBestAlignBytes / element_bytes);
  if (best.ok()) {
    // No overflow: the pool has at least as many elements.
    const std::size_t gradients = std::accumulate(
        tensor_elements.begin(), tensor_elements.end(), std::size_t{0});
    const std::size_t padding = best.value().elements() - gradients;
    if (padding == 0 || padding <= (gradients - 1) / kGradientsPerPadding) {
      return best;
    }
  }
  return Create(tensor_elements, kLeastAlignBytes / element_bytes);
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
    const std::size_t offset = offset_[tensor];
    const std::size_t from = std::max(begin, offset);
    const std::size_t end = std::min(range_end, end_[position]);
    if (end > from) parts->push_back({tensor, from - offset, from, end - from});
    begin = end;
    ++position;
  }
}

}  // namespace gradientflow
