#pragma once

#include <cstddef>

namespace gradientflow {

struct ShmOptions {
  // The address space that each rank reserves. Memory is used only where it is
  // touched, so a large value costs nothing, unless address space is limited.
  std::size_t arena_bytes = std::size_t{64} << 30;
  // For each pair and direction, rounded up to a power of two. A larger FIFO
  // stalls less in bursts; more of a smaller one stays in the cache.
  std::size_t fifo_bytes = std::size_t{1} << 20;
};

}  // namespace gradientflow
