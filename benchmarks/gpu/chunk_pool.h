#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/chunk_kernels.h"

namespace gradientflow::benchmarks {

// A pool cut into chunks, of which some are sent, spread evenly.
struct ChunkPool {
  std::size_t elements = 0;
  std::size_t chunk_elements = 32000;
  double sent_share = 0.15;

  std::size_t chunks() const {
    return (elements + chunk_elements - 1) / chunk_elements;
  }
  std::size_t sent_chunks() const { return SentBefore(chunks()); }
  // Chunk c is sent where the share of all before it passes a whole number.
  std::size_t SentBefore(std::size_t c) const {
    return static_cast<std::size_t>(static_cast<double>(c) * sent_share);
  }
  bool sent(std::size_t c) const { return SentBefore(c + 1) > SentBefore(c); }

  std::vector<std::uint32_t> Slots() const {
    std::vector<std::uint32_t> slots(chunks());
    for (std::size_t c = 0; c < slots.size(); ++c) {
      slots[c] = sent(c) ? static_cast<std::uint32_t>(SentBefore(c))
                         : kernels::kNotSent;
    }
    return slots;
  }
  std::size_t sent_elements() const {
    std::size_t sum = 0;
    for (std::size_t c = 0; c < chunks(); ++c) {
      if (!sent(c)) continue;
      sum += std::min(chunk_elements, elements - c * chunk_elements);
    }
    return sum;
  }
  kernels::ChunkRange All() const {
    return {elements, chunk_elements, 0, chunks()};
  }
};

}  // namespace gradientflow::benchmarks
