#include <algorithm>
#include <string>
#include <utility>

#include "benchmarks/gpu/kernel_case.h"

// The cases of chunk_kernels.h's optimiser.
namespace gradientflow::benchmarks {
namespace {

using kernels::Tile;
using Memory = KernelCase::Memory;

constexpr auto kF32 = DType::kFloat32;
constexpr auto kF16 = DType::kFloat16;
constexpr std::size_t kTensors = 61;
constexpr double kDoubleSum = 1e-12;  // Of one tile.
constexpr double kRate = 1e-6;        // A float32 quotient.

template <typename T>
T* As(std::byte* memory) {
  return reinterpret_cast<T*>(memory);
}

std::string Short(DType type) { return type == kF16 ? "f16" : "f32"; }

// Tensors of all sizes, the last the largest, and their tiles.
struct Tiling {
  std::vector<Tile> tiles;
  std::vector<std::size_t> weights;       // Byte offset of each tensor's.
  std::vector<std::uint64_t> first_tile;  // Of each tensor, and the end.
};

Tiling Cut(std::size_t n) {
  Tiling made;
  std::size_t begin = 0;
  for (std::size_t t = 0; t < kTensors; ++t) {
    // Squares: many small ones, few large ones.
    const std::size_t share =
        n / kTensors * (t + 1) / kTensors * (t + 1) / kTensors;
    const std::size_t count =
        t + 1 == kTensors ? n - begin : std::min(n - begin, share);
    made.first_tile.push_back(made.tiles.size());
    made.weights.push_back(begin * sizeof(float));
    for (std::size_t at = 0; at < count; at += kernels::kTileElements) {
      Tile tile{};
      tile.pool_begin = begin + at;
      tile.tensor_begin = at;
      tile.tensor = static_cast<std::uint32_t>(t);
      tile.count = static_cast<std::uint32_t>(
          std::min<std::size_t>(kernels::kTileElements, count - at));
      made.tiles.push_back(tile);
    }
    begin += count;
  }
  made.first_tile.push_back(made.tiles.size());
  return made;
}

// Weights, by tensor: the addresses in `target`.
void AddPointers(const Tiling& tiling, std::size_t target, KernelCase* made) {
  CaseBuffer pointers;
  pointers.pointers = tiling.weights;
  pointers.target = target;
  made->buffers.push_back(std::move(pointers));
}

void AddDoubles(std::size_t count, KernelCase* made) {
  made->AddZeros(count * sizeof(double));
  made->buffers.back().type = DType::kFloat64;
  made->buffers.back().tolerance = kDoubleSum;
}

KernelCase TileSquares(std::size_t n, DType type) {
  KernelCase made;
  const Tiling tiling = Cut(n);
  const std::size_t count = tiling.tiles.size();
  made.name = "tile_squares " + Short(type);
  made.bytes = static_cast<double>(n * (sizeof(float) + SizeOf(type)));
  made.Add(tiling.tiles);
  AddPointers(tiling, made.AddNormal(kF32, n), &made);
  made.AddNormal(type, n);
  AddDoubles(count, &made);
  AddDoubles(count, &made);
  made.launch = [=](const KernelTables& tables, const Memory& m, void* stream) {
    kernels::TileSquaresArgs args{};
    args.tiles = As<Tile>(m[0]);
    args.count = count;
    args.weights = As<float*>(m[2]);
    args.grads = m[3];
    args.type = type;
    args.weight_squares = As<double>(m[4]);
    args.gradient_squares = As<double>(m[5]);
    return tables.chunks.tile_squares(args, stream);
  };
  return made;
}

KernelCase LarsRates(std::size_t n) {
  KernelCase made;
  const Tiling tiling = Cut(n);
  std::vector<double> squares;
  for (std::size_t i = 0; i < tiling.tiles.size(); ++i) {
    squares.push_back(0.5 + static_cast<double>(i % 97));
  }
  made.name = "lars_rates of 61";
  made.Add(tiling.first_tile);
  made.Add(squares);
  std::reverse(squares.begin(), squares.end());
  made.Add(squares);
  made.AddZeros(kTensors * sizeof(float));
  made.buffers.back().tolerance = kRate;
  made.launch = [](const KernelTables& tables, const Memory& m, void* stream) {
    kernels::LarsRatesArgs args{};
    args.first_tile = As<std::uint64_t>(m[0]);
    args.tensors = kTensors;
    args.weight_squares = As<double>(m[1]);
    args.gradient_squares = As<double>(m[2]);
    args.lr = 0.1F;
    args.eta = 1e-3F;
    args.eps = 1e-8F;
    args.weight_decay = 1e-4F;
    args.rates = As<float>(m[3]);
    return tables.chunks.lars_rates(args, stream);
  };
  return made;
}

KernelCase TileSgd(std::size_t n, DType type) {
  KernelCase made;
  const Tiling tiling = Cut(n);
  const std::size_t count = tiling.tiles.size();
  made.name = "tile_sgd " + Short(type);
  made.bytes = static_cast<double>(n * (4 * sizeof(float) + SizeOf(type)));
  made.Add(tiling.tiles);
  AddPointers(tiling, made.AddNormal(kF32, n), &made);
  made.AddNormal(kF32, n);
  made.AddNormal(type, n);
  made.Add(std::vector<float>(kTensors, 1e-3F));
  made.launch = [=](const KernelTables& tables, const Memory& m, void* stream) {
    kernels::TileSgdArgs args{};
    args.tiles = As<Tile>(m[0]);
    args.count = count;
    args.weights = As<float*>(m[2]);
    args.momentum_buf = As<float>(m[3]);
    args.grads = m[4];
    args.type = type;
    args.rates = As<float>(m[5]);
    args.momentum = 0.9F;
    args.weight_decay = 1e-4F;
    return tables.chunks.tile_sgd(args, stream);
  };
  return made;
}

}  // namespace

std::vector<MakeCase> TileCases(std::size_t n) {
  std::vector<MakeCase> made;
  for (const DType type : {kF32, kF16}) {
    made.push_back([=] { return TileSquares(n, type); });
    made.push_back([=] { return TileSgd(n, type); });
  }
  made.push_back([=] { return LarsRates(n); });
  return made;
}

}  // namespace gradientflow::benchmarks
