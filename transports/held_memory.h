#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <memory>
#include <new>
#include <utility>
#include <vector>

namespace gradientflow {

// Memory for messages that arrive before a receive awaits them. Blocks of about
// the size of a collective's segments are used again: malloc() may return
// memory of that size to the system each time, and getting it anew costs a page
// fault for every 4 KiB. NOT thread-safe.
class HeldMemory {
 public:
  using Block = std::unique_ptr<std::byte[]>;

  // Returns at least `bytes`, or null if there is no memory. A large block is
  // left untouched, so that it takes no physical memory until it is written.
  Block Take(std::size_t bytes) {
    if (!IsKept(bytes)) return New(bytes);
    const auto order = static_cast<std::size_t>(std::bit_width(bytes - 1));
    std::vector<Block>& free = free_[order];
    if (free.empty()) return New(std::size_t{1} << order);
    kept_bytes_ -= std::size_t{1} << order;
    Block block = std::move(free.back());
    free.pop_back();
    return block;
  }

  // Takes back a block of Take(bytes).
  void Give(Block block, std::size_t bytes) {
    if (block == nullptr || !IsKept(bytes)) return;
    const auto order = static_cast<std::size_t>(std::bit_width(bytes - 1));
    const std::size_t size = std::size_t{1} << order;
    if (kept_bytes_ + size > kMostKept) return;
    kept_bytes_ += size;
    free_[order].push_back(std::move(block));
  }

  static constexpr std::size_t kMostKept = std::size_t{8} << 20;
  std::size_t kept_bytes() const { return kept_bytes_; }

 private:
  static constexpr std::size_t kLeastBlock = std::size_t{16} << 10;
  static constexpr std::size_t kMostBlock = std::size_t{1} << 20;

  static bool IsKept(std::size_t bytes) {
    return bytes > kLeastBlock && bytes <= kMostBlock;
  }
  static Block New(std::size_t bytes) {
    return Block(new (std::nothrow) std::byte[bytes]);
  }

  std::size_t kept_bytes_ = 0;
  std::array<std::vector<Block>, std::bit_width(kMostBlock)> free_;
};

}  // namespace gradientflow
