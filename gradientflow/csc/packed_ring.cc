#include "gradientflow/csc/packed_ring.h"

#include <algorithm>

namespace gradientflow {
namespace {

std::size_t Room(const Bucket& bucket, std::size_t chunk_elements) {
  return (bucket.elements + chunk_elements - 1) / chunk_elements *
         chunk_elements;
}

}  // namespace

std::size_t PackedRing::Capacity(std::span<const Bucket> buckets,
                                 std::size_t chunk_elements,
                                 std::size_t usual_elements) {
  std::size_t largest = 0;
  std::size_t all = 0;
  for (const Bucket& bucket : buckets) {
    largest = std::max(largest, Room(bucket, chunk_elements));
    all += Room(bucket, chunk_elements);
  }
  return std::min(all, std::max(usual_elements, 2 * largest));
}

bool PackedRing::Place(std::span<const Bucket> buckets,
                       std::size_t chunk_elements, std::size_t capacity) {
  begin_.clear();
  needs_back_.clear();
  std::size_t at = 0;
  std::size_t back = 0;  // Earlier buckets that must have been unpacked.
  bool reused = false;
  for (const Bucket& bucket : buckets) {
    const std::size_t room = Room(bucket, chunk_elements);
    if (room > capacity) return false;
    if (at + room > capacity) {
      at = 0;
      reused = true;
    }
    for (std::size_t i = begin_.size(); reused && i-- > back;) {
      const std::size_t end = begin_[i] + Room(buckets[i], chunk_elements);
      if (begin_[i] >= at + room || end <= at) continue;
      back = i + 1;
    }
    begin_.push_back(at);
    needs_back_.push_back(back);
    at += room;
  }
  return true;
}

}  // namespace gradientflow
