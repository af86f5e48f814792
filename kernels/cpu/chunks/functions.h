#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/chunk_kernels.h"

// The functions of CpuChunkKernels(), which table.cc lists, and their helpers.
namespace gradientflow::kernels::cpu {

int ChunkResidual(const ChunkResidualArgs& args, void* stream);
int ChunkUnpack(const ChunkUnpackArgs& args, void* stream);
int ChunkRestore(const ChunkRestoreArgs& args, void* stream);
int ChunkRescale(const ChunkRescaleArgs& args, void* stream);
int TopK(const TopKArgs& args, void* stream);
int TileSquares(const TileSquaresArgs& args, void* stream);
int LarsRates(const LarsRatesArgs& args, void* stream);
int TileSgd(const TileSgdArgs& args, void* stream);

// Whether no sent chunk of the range has its slot before the packed buffer.
inline bool SlotsAllowed(const ChunkRange& range, const std::uint32_t* slots,
                         std::uint32_t first_slot) {
  for (std::size_t c = range.first; c < range.first + range.count; ++c) {
    if (slots[c] < first_slot) return false;
  }
  return true;
}

// Elements [begin, begin + count) of the pool.
struct Run {
  std::size_t begin;
  std::size_t count;
};

// The elements of chunk `c`. REQUIRES: the pool has it.
inline Run RunOf(const ChunkRange& range, std::size_t c) {
  const std::size_t begin = c * range.chunk_elements;
  const std::size_t left = range.elements - begin;
  return {begin, left < range.chunk_elements ? left : range.chunk_elements};
}

// Whether the tile's gradients were exchanged.
inline bool IsSent(const Tile& tile, const std::uint32_t* slots) {
  return slots == nullptr || slots[tile.chunk] != kNotSent;
}

inline void* ElementAt(void* base, DType type, std::size_t i) {
  return static_cast<std::byte*>(base) + i * SizeOf(type);
}

inline const void* ElementAt(const void* base, DType type, std::size_t i) {
  return static_cast<const std::byte*>(base) + i * SizeOf(type);
}

}  // namespace gradientflow::kernels::cpu
