#include "transports/shm/window_heap.h"

#include <algorithm>
#include <iterator>
#include <limits>

namespace gradientflow {
namespace {

constexpr std::uint64_t kPage = 4096;
constexpr std::uint64_t kHugePage = std::uint64_t{2} << 20;

}  // namespace

WindowHeap::WindowHeap(std::uint64_t begin, std::uint64_t end) {
  if (begin < end) free_[begin] = end - begin;
}

std::optional<std::uint64_t> WindowHeap::Allocate(std::size_t bytes) {
  if (bytes > std::numeric_limits<std::size_t>::max() - kPage) return {};
  const std::uint64_t rounded =
      std::max<std::uint64_t>(1, (bytes + kPage - 1) / kPage) * kPage;
  if (rounded >= kHugePage) {
    if (auto offset = FirstFit(rounded, kHugePage)) return offset;
  }
  return FirstFit(rounded, kPage);
}

std::optional<std::uint64_t> WindowHeap::FirstFit(std::uint64_t bytes,
                                                  std::uint64_t alignment) {
  for (auto it = free_.begin(); it != free_.end(); ++it) {
    const auto [begin, length] = *it;
    const std::uint64_t skip = (alignment - begin % alignment) % alignment;
    if (skip > length || length - skip < bytes) continue;
    free_.erase(it);
    if (skip > 0) free_[begin] = skip;
    if (skip + bytes < length) {
      free_[begin + skip + bytes] = length - skip - bytes;
    }
    used_[begin + skip] = bytes;
    return begin + skip;
  }
  return {};
}

std::optional<std::size_t> WindowHeap::Free(std::uint64_t offset) {
  const auto used = used_.find(offset);
  if (used == used_.end()) return {};
  const std::uint64_t bytes = used->second;
  used_.erase(used);
  auto run = free_.emplace(offset, bytes).first;
  if (const auto next = std::next(run);
      next != free_.end() && offset + bytes == next->first) {
    run->second += next->second;
    free_.erase(next);
  }
  if (run != free_.begin()) {
    const auto before = std::prev(run);
    if (before->first + before->second == offset) {
      before->second += run->second;
      free_.erase(run);
    }
  }
  return bytes;
}

bool WindowHeap::Contains(std::uint64_t offset, std::size_t bytes) const {
  auto it = used_.upper_bound(offset);
  if (it == used_.begin()) return false;
  --it;
  const std::uint64_t skip = offset - it->first;
  return skip <= it->second && bytes <= it->second - skip;
}

std::uint64_t WindowHeap::free_bytes() const {
  std::uint64_t sum = 0;
  for (const auto& [offset, bytes] : free_) sum += bytes;
  return sum;
}

std::uint64_t WindowHeap::largest_free_bytes() const {
  std::uint64_t largest = 0;
  for (const auto& [offset, bytes] : free_) largest = std::max(largest, bytes);
  return largest;
}

}  // namespace gradientflow
