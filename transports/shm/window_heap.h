#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>

namespace gradientflow {

// Who owns which offsets of an arena: first fit over a list of free runs.
// Touches no memory.
class WindowHeap {
 public:
  // Hands out [begin, end), both multiples of 4096.
  WindowHeap(std::uint64_t begin, std::uint64_t end);

  // The offset of `bytes` (rounded up to whole pages of 4096, at least one);
  // nothing if no free run is long enough. Large windows start at a multiple
  // of 2 MiB where that is possible, so that huge pages fit.
  std::optional<std::uint64_t> Allocate(std::size_t bytes);

  // The page-rounded length of the window at `offset`, now free; nothing if
  // Allocate() did not give it.
  std::optional<std::size_t> Free(std::uint64_t offset);

  // Whether [offset, offset + bytes) lies inside one window.
  bool Contains(std::uint64_t offset, std::size_t bytes) const;

  std::uint64_t free_bytes() const;
  std::uint64_t largest_free_bytes() const;

 private:
  std::optional<std::uint64_t> FirstFit(std::uint64_t bytes,
                                        std::uint64_t alignment);

  // Offset to length; free runs never touch each other.
  std::map<std::uint64_t, std::uint64_t> free_;
  std::map<std::uint64_t, std::uint64_t> used_;
};

}  // namespace gradientflow
