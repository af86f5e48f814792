#pragma once

#include <algorithm>
#include <cstddef>
#include <optional>
#include <vector>

namespace gradientflow {

// Which parts of some memory are taken. Blocks are taken one behind another and
// given back in any order; the memory is used as a ring, so it does not
// fragment. Allocates nothing once it has had its greatest number of blocks.
// NOT thread-safe.
class BlockRing {
 public:
  static constexpr std::size_t kAlignment = 256;
  // What a block of `bytes` takes of the capacity.
  static constexpr std::size_t Aligned(std::size_t bytes) {
    return (bytes + kAlignment - 1) / kAlignment * kAlignment;
  }

  // All of it is free. REQUIRES empty().
  void SetCapacity(std::size_t bytes) { capacity_ = bytes; }
  std::size_t capacity() const { return capacity_; }
  bool empty() const { return blocks_.empty(); }

  // Returns where a block of `bytes` begins, at a multiple of kAlignment.
  // Returns nothing if there is no room until other blocks are given back.
  std::optional<std::size_t> Take(std::size_t bytes) {
    bytes = Aligned(bytes);
    std::size_t begin = 0;
    std::size_t end = capacity_;
    if (!blocks_.empty()) {
      // Free memory begins behind the newest block. It goes on to the end of
      // the memory or, once the ring has wrapped around, to the oldest block.
      const std::size_t oldest = blocks_.front().begin;
      const bool wrapped = blocks_.back().begin < oldest;
      begin = blocks_.back().end;
      if (wrapped) end = oldest;
      if (bytes > end - begin && !wrapped) {
        begin = 0;
        end = oldest;
      }
    }
    if (bytes > end - begin) return std::nullopt;
    blocks_.push_back({begin, begin + bytes, false});
    return begin;
  }

  // REQUIRES a block that Take() returned.
  void Give(std::size_t begin) {
    const auto taken = std::find_if(
        blocks_.begin(), blocks_.end(),
        [&](const Block& b) { return b.begin == begin && !b.given_back; });
    taken->given_back = true;
    const auto first_kept =
        std::find_if(blocks_.begin(), blocks_.end(),
                     [](const Block& b) { return !b.given_back; });
    blocks_.erase(blocks_.begin(), first_kept);
  }

 private:
  struct Block {
    std::size_t begin = 0;
    std::size_t end = 0;
    bool given_back = false;
  };
  std::size_t capacity_ = 0;
  std::vector<Block> blocks_;  // In the order of taking.
};

}  // namespace gradientflow
