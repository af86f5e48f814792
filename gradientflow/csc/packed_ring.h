#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "gradientflow/buckets/bucket_plan.h"

namespace gradientflow {

// Where the buckets of a step lie in the memory into which sent chunks are
// packed. The memory is allocated once and holds what a step sends after the
// warm-up. The first steps send more; then a bucket takes the place of an
// earlier one, once that one has been unpacked. NOT thread-safe.
class PackedRing {
 public:
  // Returns how many elements a ring needs for steps that send `usual_elements`
  // and have no larger bucket than those in `buckets`. There is room for at
  // least two buckets, so that one is packed while another one travels.
  static std::size_t Capacity(std::span<const Bucket> buckets,
                              std::size_t chunk_elements,
                              std::size_t usual_elements);

  // Finds places in `capacity` elements for a step's buckets, which consist of
  // whole chunks, in order. A short chunk takes the place of a full one.
  // Returns false if a bucket is larger than the ring.
  bool Place(std::span<const Bucket> buckets, std::size_t chunk_elements,
             std::size_t capacity);

  // Where the bucket begins, in elements.
  std::size_t begin(std::size_t bucket) const { return begin_[bucket]; }
  // Returns how many buckets must have been unpacked before this one is packed.
  std::size_t needs_back(std::size_t bucket) const {
    return needs_back_[bucket];
  }

 private:
  std::vector<std::size_t> begin_;
  std::vector<std::size_t> needs_back_;
};

}  // namespace gradientflow
