#include "gradientflow/optimizer/tiles.h"

#include <algorithm>

namespace gradientflow {

TensorTiles CutTiles(const PoolLayout& layout, std::size_t chunk_elements) {
  TensorTiles cut;
  for (std::size_t i = 0; i < layout.tensors(); ++i) {
    cut.first_tile.push_back(cut.tiles.size());
    for (std::size_t done = 0; done < layout.tensor_elements(i);) {
      kernels::Tile tile = {};
      tile.pool_begin = layout.offset(i) + done;
      tile.tensor_begin = done;
      tile.tensor = static_cast<std::uint32_t>(i);
      std::size_t count = std::min<std::size_t>(
          layout.tensor_elements(i) - done, kernels::kTileElements);
      if (chunk_elements > 0) {
        const std::size_t chunk = tile.pool_begin / chunk_elements;
        const std::size_t end = (chunk + 1) * chunk_elements;
        tile.chunk = static_cast<std::uint32_t>(chunk);
        count = std::min(count, end - tile.pool_begin);
      }
      tile.count = static_cast<std::uint32_t>(count);
      cut.tiles.push_back(tile);
      done += count;
    }
  }
  cut.first_tile.push_back(cut.tiles.size());
  return cut;
}

}  // namespace gradientflow
