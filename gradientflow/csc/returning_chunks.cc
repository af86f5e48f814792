#include "gradientflow/csc/returning_chunks.h"

#include <algorithm>

namespace gradientflow {

void ReturningChunks::Begin(std::size_t chunk_elements,
                            std::span<const std::size_t> chunks,
                            std::span<const Bucket> buckets) {
  chunk_elements_ = chunk_elements;
  chunks_ = chunks;
  feeds_.clear();
  std::size_t elements = 0;
  for (const Bucket& bucket : buckets) {
    feeds_.emplace_back(this, elements, bucket.elements);
    elements += bucket.elements;
  }
  left_.assign(chunks.size(), chunk_elements);
  // Only the last chunk that is sent can be the pool's last one.
  if (!chunks.empty()) {
    left_.back() = elements - (chunks.size() - 1) * chunk_elements;
  }
  back_.clear();
  taken_ = 0;
}

void ReturningChunks::Finished(std::size_t begin, std::size_t count) {
  for (const std::size_t end = begin + count; begin < end;) {
    const std::size_t i = begin / chunk_elements_;
    const std::size_t part = std::min(end, (i + 1) * chunk_elements_) - begin;
    left_[i] -= part;
    if (left_[i] == 0) back_.push_back(chunks_[i]);
    begin += part;
  }
}

std::span<const std::size_t> ReturningChunks::Take(std::size_t most) {
  const std::size_t count = std::min(most, back_.size() - taken_);
  const std::span<const std::size_t> chunks =
      std::span<const std::size_t>(back_).subspan(taken_, count);
  taken_ += count;
  return chunks;
}

}  // namespace gradientflow
