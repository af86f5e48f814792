#include "gradientflow/buckets/bucket_plan.h"

#include <algorithm>
#include <cassert>
#include <optional>
#include <utility>

namespace gradientflow {
namespace {

// Appends [begin, begin + count), merged with the last extent if they touch.
void Append(std::vector<Extent>* extents, Extent extent) {
  if (!extents->empty() &&
      extents->back().begin + extents->back().count == extent.begin) {
    extents->back().count += extent.count;
  } else {
    extents->push_back(extent);
  }
}

// Applies the theta rule to pieces that come in pool order. It counts gradients
// only, so that padding changes no bucket.
class Cutter {
 public:
  Cutter(std::size_t theta_bytes, std::size_t element_bytes)
      : theta_bytes_(theta_bytes), element_bytes_(element_bytes) {
    assert(element_bytes >= 1 && element_bytes <= 8);
  }

  // The piece has so many gradients; the rest of it is padding.
  void Add(Extent piece, std::size_t gradients) {
    if (gradients == 0) return;
    Append(&open_.extents, piece);
    open_.elements += piece.count;
    open_.pool_end = piece.begin + piece.count;
    gradients_ += gradients;
    if (gradients_ * element_bytes_ > theta_bytes_) Close();
  }

  // Where the pieces of the open bucket end; nothing if there are none.
  std::optional<std::size_t> open_end() const {
    if (open_.elements == 0) return std::nullopt;
    return open_.pool_end;
  }

  std::vector<Bucket> Finish() {
    if (open_.elements > 0) Close();
    return std::move(buckets_);
  }

 private:
  void Close() {
    buckets_.push_back(std::exchange(open_, Bucket{}));
    gradients_ = 0;
  }

  const std::size_t theta_bytes_;
  const std::size_t element_bytes_;
  Bucket open_;
  std::size_t gradients_ = 0;  // In the open bucket.
  std::vector<Bucket> buckets_;
};

}  // namespace

std::vector<Bucket> PlanDense(const PoolLayout& layout, std::size_t theta_bytes,
                              std::size_t element_bytes) {
  Cutter cutter(theta_bytes, element_bytes);
  for (std::size_t tensor : layout.order()) {
    const std::size_t count = layout.tensor_elements(tensor);
    const std::size_t end = layout.offset(tensor) + count;
    const std::size_t begin = cutter.open_end().value_or(layout.offset(tensor));
    cutter.Add({begin, end - begin}, count);
  }
  return cutter.Finish();
}

std::vector<Bucket> PlanSparse(const SparsePlanArgs& args,
                               std::size_t theta_bytes,
                               std::size_t element_bytes) {
  Cutter cutter(theta_bytes, element_bytes);
  std::size_t begin = 0;
  for (std::uint8_t selected : args.selected) {
    assert(begin < args.pool_elements);
    const std::size_t count =
        std::min(args.chunk_elements, args.pool_elements - begin);
    if (selected != 0) cutter.Add({begin, count}, count);
    begin += count;
  }
  assert(begin == args.pool_elements);
  return cutter.Finish();
}

std::vector<Extent> ExtentsOf(std::span<const Bucket> buckets) {
  std::vector<Extent> extents;
  for (const Bucket& bucket : buckets) {
    for (const Extent& extent : bucket.extents) Append(&extents, extent);
  }
  return extents;
}

}  // namespace gradientflow
