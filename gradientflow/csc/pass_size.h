#pragma once

#include <algorithm>
#include <cstddef>

namespace gradientflow {

// The thread that drives makes CSC's passes over a pool in host memory, and
// serves the wire between two of them. A pass takes this many elements for each
// thread that shares it, in whole chunks.
inline constexpr std::size_t kPassElements = std::size_t{128} << 10;

// REQUIRES threads >= 1 and chunk_elements >= 1.
inline std::size_t PassChunks(int threads, std::size_t chunk_elements) {
  return static_cast<std::size_t>(threads) *
         std::max<std::size_t>(1, kPassElements / chunk_elements);
}

}  // namespace gradientflow
