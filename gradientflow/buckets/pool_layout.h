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
// last tensor first (arXiv 1902.06855, lazy allreduce). The same on every rank.
// An immutable value: any thread may read it.
//
// A tensor that has elements begins at a multiple of align_elements(), so that
// kernels may load whole vectors of it. What is left free before it is padding.
// That belongs to no tensor. It is zero when the pool is new, nobody writes to
// it, and the mean or sum of zeros is zero, so it stays so. It counts in
// elements() and in positions of the pool, thus in chunks, and nowhere else.
// The pool neither begins nor ends with padding.
class PoolLayout {
 public:
  // The empty pool.
  PoolLayout() = default;

  // `tensor_elements` are the sizes in forward order; zeros are allowed. With
  // align_elements = 1 there is no padding. REQUIRES align_elements >= 1.
  // Returns kInvalidArgument if the pool's bytes could overflow a size_t.
  static Result<PoolLayout> Create(
      const std::vector<std::size_t>& tensor_elements,
      std::size_t align_elements = 1);

  // The layout of a pool whose elements have `element_bytes`, a power of two up
  // to 16. Tensors begin at multiples of 128 bytes if the padding for that is
  // less than 1 % of the gradients, else of 16. Errors as above.
  static Result<PoolLayout> Aligned(
      const std::vector<std::size_t>& tensor_elements,
      std::size_t element_bytes);

  std::size_t tensors() const { return offset_.size(); }
  // All of the pool, with its padding.
  std::size_t elements() const { return end_.empty() ? 0 : end_.back(); }
  std::size_t align_elements() const { return align_elements_; }

  // For tensor `i`, in forward order. REQUIRES: i < tensors().
  std::size_t offset(std::size_t i) const { return offset_[i]; }
  std::size_t tensor_elements(std::size_t i) const {
    return end_[tensors() - 1 - i] - offset_[i];
  }
  // The end of the part of the pool that is written as soon as tensor `i` and
  // those before it in the pool are: it includes the padding behind `i`.
  std::size_t written_end(std::size_t i) const {
    return i == 0 ? elements() : offset_[i - 1];
  }

  // The tensors in pool order: order()[0] is the one at offset 0.
  const std::vector<std::size_t>& order() const { return order_; }

  // Returns the part of each tensor that `range` covers, in pool order. Tensors
  // without elements, and padding, never appear. REQUIRES: `range` lies in the
  // pool.
  std::vector<TensorPart> Parts(Extent range) const;
  // The same, appended to `parts`, for callers that keep the vector.
  void AppendParts(Extent range, std::vector<TensorPart>* parts) const;

 private:
  std::size_t align_elements_ = 1;
  std::vector<std::size_t> offset_;  // By tensor.
  std::vector<std::size_t> order_;   // By position in the pool.
  std::vector<std::size_t> end_;     // By position in the pool.
};

}  // namespace gradientflow
