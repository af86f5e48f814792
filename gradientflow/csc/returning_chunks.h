#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "gradientflow/buckets/bucket_plan.h"
#include "gradientflow/collectives/collective.h"

namespace gradientflow {

// The chunks that a step sends in buckets, and which of them are back. Parts of
// a bucket come back in any order, and a chunk is back when all of it is. So
// its norm can be taken while the chunk is still in the caches. NOT
// thread-safe.
class ReturningChunks {
 public:
  // The step sends `chunks`, ascending, of `chunk_elements` each; the pool's
  // last chunk may be short. `buckets` divide them in order. Forgets the step
  // before, of which nothing is in flight. `chunks` is borrowed until the next
  // Begin().
  void Begin(std::size_t chunk_elements, std::span<const std::size_t> chunks,
             std::span<const Bucket> buckets);

  // For the call that exchanges the bucket. Valid until the next Begin().
  Feed* feed(std::size_t bucket) { return &feeds_[bucket]; }

  // Whether any chunk is back and has not been taken.
  bool any() const { return taken_ < back_.size(); }
  // Takes `most` of them, or all if they are fewer. Valid until the next
  // call of Take() or Begin(), or the next part that comes back.
  std::span<const std::size_t> Take(std::size_t most);

 private:
  class BucketFeed final : public Feed {
   public:
    BucketFeed(ReturningChunks* owner, std::size_t begin, std::size_t count)
        : owner_(owner), begin_(begin), count_(count) {}
    std::size_t available() const override { return count_; }
    void Finished(std::size_t begin, std::size_t count) override {
      owner_->Finished(begin_ + begin, count);
    }

   private:
    ReturningChunks* owner_;
    std::size_t begin_;  // Of the bucket, among all elements that are sent.
    std::size_t count_;
  };

  void Finished(std::size_t begin, std::size_t count);

  std::size_t chunk_elements_ = 1;
  std::span<const std::size_t> chunks_;
  std::vector<std::size_t> left_;  // Elements that are not back, by chunk.
  std::vector<BucketFeed> feeds_;
  std::vector<std::size_t> back_;
  std::size_t taken_ = 0;  // The first so many of them.
};

}  // namespace gradientflow
