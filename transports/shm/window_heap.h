#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>

namespace gradientflow {

// Keeps track of which offsets of an arena are in use: first fit over a list of
// free runs. Touches no memory.
class WindowHeap {
 public:
  // Manages [begin, end); both are multiples of 4096.
  WindowHeap(std::uint64_t begin, std::uint64_t end);

  // Returns the offset of a window of `bytes`, rounded up to whole pages of
  // 4096 and at least one page, or nothing if no free run is long enough. A
  // large window starts at a multiple of 2 MiB where possible, so that huge
  // pages fit.
  std::optional<std::uint64_t> Allocate(std::size_t bytes);

  // Frees the window at `offset` and returns its length in whole pages, or
  // nothing if Allocate() did not return that offset.
  std::optional<std::size_t> Free(std::uint64_t offset);

  // Returns whether [offset, offset + bytes) lies inside one window.
  bool Contains(std::uint64_t offset, std::size_t bytes) const;

  std::uint64_t free_bytes() const;
  std::uint64_t largest_free_bytes() const;

 private:
  std::optional<std::uint64_t> FirstFit(std::uint64_t bytes,
                                        std::uint64_t alignment);

  // Offset to length. No two free runs are adjacent.
  std::map<std::uint64_t, std::uint64_t> free_;
  std::map<std::uint64_t, std::uint64_t> used_;
};

}  // namespace gradientflow
