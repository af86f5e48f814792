#include <algorithm>

#include "benchmarks/kernels/kernel_case.h"

// The cases of chunk_kernels.h's optimiser.
namespace gradientflow::benchmarks {
namespace {

using kernels::Tile;

constexpr std::size_t kTensors = 61;
constexpr double kDoubleSum = 1e-12;  // For one tile.
constexpr double kRate = 1e-6;        // A float32 quotient.

// Tensors of all sizes, the last of which is the largest, and their tiles.
struct Tiling {
  std::vector<Tile> tiles;
  std::vector<std::size_t> weights;       // Byte offset of each tensor's.
  std::vector<std::uint64_t> first_tile;  // By tensor, then the end.
};

Tiling Cut(std::size_t n) {
  Tiling made;
  std::size_t begin = 0;
  for (std::size_t t = 0; t < kTensors; ++t) {
    // Sizes grow like squares: many small tensors, few large ones.
    const std::size_t share =
        n / kTensors * (t + 1) / kTensors * (t + 1) / kTensors;
    const std::size_t count =
        t + 1 == kTensors ? n - begin : std::min(n - begin, share);
    made.first_tile.push_back(made.tiles.size());
    made.weights.push_back(begin * sizeof(float));
    for (std::size_t at = 0; at < count; at += kernels::kTileElements) {
      const std::size_t most = kernels::kTileElements;
      made.tiles.push_back(
          {begin + at, at, static_cast<std::uint32_t>(t),
           static_cast<std::uint32_t>(std::min(most, count - at)), 0, 0});
    }
    begin += count;
  }
  made.first_tile.push_back(made.tiles.size());
  return made;
}

// The addresses of the weights, by tensor; the weights lie in buffer 1.
CaseBuffer WeightPointers(const Tiling& tiling) {
  const auto fill = [weights = tiling.weights](std::byte* to,
                                               const Memory& memory) {
    auto* const pointers = reinterpret_cast<std::byte**>(to);
    for (std::size_t t = 0; t < kTensors; ++t) {
      pointers[t] = memory[1] + weights[t];
    }
  };
  return {.bytes = kTensors * sizeof(float*), .fill = fill, .checked = false};
}

KernelCase TileSquares(std::size_t n, DType type) {
  const Tiling tiling = Cut(n);
  const std::size_t count = tiling.tiles.size();
  return {"tile_squares " + ShortName(type),
          static_cast<double>(n * (sizeof(float) + SizeOf(type))),
          {Values(tiling.tiles), Normal(kF32, n, 1), WeightPointers(tiling),
           Normal(type, n, 3), Sums(DType::kFloat64, count, kDoubleSum),
           Sums(DType::kFloat64, count, kDoubleSum)},
          [=](const Site& s) {
            return s.tables.chunks.tile_squares(
                {s.as<Tile>(0), count, nullptr, s.as<float*>(2), s.m[3], type,
                 s.as<double>(4), s.as<double>(5)},
                s.stream);
          }};
}

KernelCase LarsRates(std::size_t n) {
  const Tiling tiling = Cut(n);
  std::vector<double> squares;
  for (std::size_t i = 0; i < tiling.tiles.size(); ++i) {
    squares.push_back(0.5 + static_cast<double>(i % 97));
  }
  const std::vector<double> reversed(squares.rbegin(), squares.rend());
  return {
      "lars_rates of 61",
      0,
      {Values(tiling.first_tile), Values(squares), Values(reversed),
       Sums(kF32, kTensors, kRate)},
      [](const Site& s) {
        return s.tables.chunks.lars_rates(
            {s.as<std::uint64_t>(0), kTensors, s.as<double>(1), s.as<double>(2),
             nullptr, 0.1F, 1e-3F, 1e-8F, 1e-4F, s.as<float>(3)},
            s.stream);
      }};
}

KernelCase TileSgd(std::size_t n, DType type) {
  const Tiling tiling = Cut(n);
  const std::size_t count = tiling.tiles.size();
  return {"tile_sgd " + ShortName(type),
          static_cast<double>(n * (4 * sizeof(float) + SizeOf(type))),
          {Values(tiling.tiles), Normal(kF32, n, 1), WeightPointers(tiling),
           Normal(kF32, n, 3), Normal(type, n, 4),
           Values(std::vector<float>(kTensors, 1e-3F))},
          [=](const Site& s) {
            return s.tables.chunks.tile_sgd(
                {s.as<Tile>(0), count, nullptr, s.as<float*>(2), s.as<float>(3),
                 s.m[4], type, s.as<float>(5), 0, 0.9F, 1e-4F, false, nullptr},
                s.stream);
          }};
}

}  // namespace

KernelCases TileCases(std::size_t n) {
  return {TileSquares(n, kF32), TileSgd(n, kF32), TileSquares(n, kF16),
          TileSgd(n, kF16), LarsRates(n)};
}

}  // namespace gradientflow::benchmarks
