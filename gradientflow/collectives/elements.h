#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "gradientflow/collectives/collective.h"

namespace gradientflow {

// A call's buffer as a gapless sequence of elements, whatever extents of memory
// are behind it, so that sparse buckets need no staging copy. A value; it
// borrows the memory and the extents.
class Elements {
 public:
  Elements() = default;
  // All elements from `base` on, in order.
  Elements(std::byte* base, std::size_t element_bytes)
      : base_(base), element_bytes_(element_bytes) {}
  // The elements in `extents`, which must not be empty. starts[i] is the number
  // of elements before extents[i].
  Elements(std::byte* base, std::size_t element_bytes,
           const std::vector<Extent>* extents,
           const std::vector<std::size_t>* starts)
      : base_(base),
        element_bytes_(element_bytes),
        extents_(extents),
        starts_(starts) {}

  // The same elements in a buffer of the same shape elsewhere.
  Elements At(std::byte* base) const {
    Elements other = *this;
    other.base_ = base;
    return other;
  }

  // Returns where [begin, begin + count) lies if it is one piece, else null.
  std::byte* Contiguous(std::size_t begin, std::size_t count) const {
    if (extents_ == nullptr) return base_ + begin * element_bytes_;
    const Run run = RunAt(begin, count);
    return run.count == count ? run.data : nullptr;
  }

  // Calls visit(data, n, offset) for each contiguous run of [begin, begin +
  // count), in order. `offset` counts from `begin`.
  template <typename Visit>
  void ForEachRun(std::size_t begin, std::size_t count, Visit visit) const {
    for (std::size_t done = 0; done < count;) {
      const Run run = RunAt(begin + done, count - done);
      visit(run.data, run.count, done);
      done += run.count;
    }
  }

 private:
  struct Run {
    std::byte* data;
    std::size_t count;
  };
  Run RunAt(std::size_t begin, std::size_t count) const {
    if (extents_ == nullptr) return {base_ + begin * element_bytes_, count};
    const auto after =
        std::upper_bound(starts_->begin(), starts_->end(), begin);
    const auto i = static_cast<std::size_t>(after - starts_->begin()) - 1;
    const Extent& extent = (*extents_)[i];
    const std::size_t skip = begin - (*starts_)[i];
    return {base_ + (extent.begin + skip) * element_bytes_,
            std::min(count, extent.count - skip)};
  }

  std::byte* base_ = nullptr;
  std::size_t element_bytes_ = 1;
  const std::vector<Extent>* extents_ = nullptr;
  const std::vector<std::size_t>* starts_ = nullptr;
};

}  // namespace gradientflow
