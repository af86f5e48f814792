#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "gradientflow/collectives/segment.h"

namespace gradientflow {

// All segments of an executor. Each is lent to a queue of calls until the group
// of the queue is closed. NOT thread-safe.
class SegmentPool {
 public:
  // `args` outlive the pool.
  explicit SegmentPool(const SegmentArgs& args) : args_(args) {}

  // The segment of that slot: Segment's cookies have it in their high half.
  Segment& operator[](std::uint64_t slot) { return *segments_[slot]; }
  const std::vector<std::unique_ptr<Segment>>& all() const { return segments_; }

  // Lends as many more to `queue` as it lacks.
  void FillUp(std::vector<Segment*>* queue, std::size_t count) {
    while (queue->size() < count) {
      if (free_.empty()) {
        segments_.push_back(std::make_unique<Segment>(
            args_, static_cast<std::uint32_t>(segments_.size())));
        free_.push_back(segments_.back().get());
      }
      queue->push_back(free_.back());
      free_.pop_back();
    }
  }
  // Takes back those of a queue, which are idle.
  void TakeBack(const std::vector<Segment*>& queue) {
    free_.insert(free_.end(), queue.begin(), queue.end());
  }

 private:
  const SegmentArgs& args_;
  std::vector<std::unique_ptr<Segment>> segments_;  // By slot.
  std::vector<Segment*> free_;
};

}  // namespace gradientflow
