#include <cerrno>
#include <cstddef>

#include "kernels/chunk_kernels.h"
#include "kernels/cpu/chunks/functions.h"
#include "kernels/kernels.h"

namespace gradientflow::kernels::cpu {
namespace {

int Squares(const void* src, DType type, std::size_t n, double* sum) {
  *sum = 0;
  return CpuKernels().sum_squares({src, type, n, sum}, nullptr);
}

}  // namespace

int TileSquares(const TileSquaresArgs& args, void*) {
  if (!IsGradientType(args.type)) return EINVAL;
  for (std::size_t t = 0; t < args.count; ++t) {
    const Tile& tile = args.tiles[t];
    const float* weights = args.weights[tile.tensor];
    if (weights == nullptr) continue;
    int error = Squares(weights + tile.tensor_begin, DType::kFloat32,
                        tile.count, &args.weight_squares[t]);
    if (error != 0) return error;
    error = Squares(ElementAt(args.grads, args.type, tile.pool_begin),
                    args.type, IsSent(tile, args.slots) ? tile.count : 0,
                    &args.gradient_squares[t]);
    if (error != 0) return error;
  }
  return 0;
}

}  // namespace gradientflow::kernels::cpu
