#pragma once

#include <cstddef>
#include <vector>

#include "gradientflow/base/status.h"
#include "gradientflow/collectives/collective.h"

namespace gradientflow {

// The part of one tensor that lies in a range of the pool. All in elements.
struct TensorPart {
  std::size_t tensor = 0;      // Index in forward order.
  std::size_t begin = 0;       // Within the tensor.
  std::size_t pool_begin = 0;  // Within the pool.
  std::size_t count = 0;       // At least 1.
};

// Where each tensor's gradient lies in the pool: in generation order, which is
// last tensor first, without gaps (arXiv 1902.06855, lazy allreduce). The same
// on every rank. An immutable value: any thread may read it.
class PoolLayout {
 public:
  // The empty pool.
  PoolLayout() = default;

  // `tensor_elements` are the sizes in forward order; zeros are allowed.
  // Returns kInvalidArgument if the pool's bytes could overflow a size_t.
  static Result<PoolLayout> Create(
      const std::vector<std::size_t>& tensor_elements);

  std::size_t tensors() const { return offset_.size(); }
  std::size_t elements() const { return end_.empty() ? 0 : end_.back(); }

  // For tensor `i`, in forward order. REQUIRES: i < tensors().
  std::size_t offset(std::size_t i) const { return offset_[i]; }
  std::size_t tensor_elements(std::size_t i) const {
    return end_[tensors() - 1 - i] - offset_[i];
  }

  // The tensors in pool order: order()[0] is the one at offset 0.
  const std::vector<std::size_t>& order() const { return order_; }

  // Returns the part of each tensor that `range` covers, in pool order. Tensors
  // without elements never appear. REQUIRES: `range` lies in the pool.
  std::vector<TensorPart> Parts(Extent range) const;
  // The same, appended to `parts`, for callers that keep the vector.
  void AppendParts(Extent range, std::vector<TensorPart>* parts) const;

 private:
  std::vector<std::size_t> offset_;  // By tensor.
  std::vector<std::size_t> order_;   // By position in the pool.
  std::vector<std::size_t> end_;     // By position in the pool.
};

}  // namespace gradientflow
