#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "gradientflow/buckets/pool_layout.h"
#include "kernels/chunk_kernels.h"

namespace gradientflow {

// The pieces of the tensors that optimisers work on and sum the squares of. All
// ranks cut alike, and so get the same sums wherever their memory is.
struct TensorTiles {
  std::vector<kernels::Tile> tiles;       // In tensor order.
  std::vector<std::uint64_t> first_tile;  // By tensor, then the total.
};

// Cuts every tensor at the borders of chunks (0: no chunks) and of tiles.
TensorTiles CutTiles(const PoolLayout& layout, std::size_t chunk_elements);

}  // namespace gradientflow
