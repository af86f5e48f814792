#pragma once

#include <cstddef>

namespace gradientflow {

struct ShmOptions {
  // Address space each rank reserves; memory is used only where touched, so
  // large costs nothing but under limits on address space.
  std::size_t arena_bytes = std::size_t{64} << 30;
  // Per pair and direction, rounded up to a power of two. Larger: fewer stalls
  // of bursts; smaller: more of it stays in cache.
  std::size_t fifo_bytes = std::size_t{1} << 20;
};

}  // namespace gradientflow
