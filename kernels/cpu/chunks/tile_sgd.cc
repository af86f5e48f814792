#include <cerrno>
#include <cstddef>

#include "kernels/chunk_kernels.h"
#include "kernels/cpu/chunks/functions.h"
#include "kernels/kernels.h"

namespace gradientflow::kernels::cpu {

int TileSgd(const TileSgdArgs& args, void*) {
  if (!IsGradientType(args.type)) return EINVAL;
  if (args.skip != nullptr && *args.skip != 0) return 0;
  for (std::size_t t = 0; t < args.count; ++t) {
    const Tile& tile = args.tiles[t];
    float* weights = args.weights[tile.tensor];
    if (weights == nullptr || !IsSent(tile, args.slots)) continue;
    const int error = CpuKernels().sgd(
        {.weights = weights + tile.tensor_begin,
         .momentum_buf = args.momentum_buf + tile.pool_begin,
         .grads = ElementAt(args.grads, args.type, tile.pool_begin),
         .type = args.type,
         .n = tile.count,
         .lr = args.rates != nullptr ? args.rates[tile.tensor] : args.lr,
         .momentum = args.momentum,
         .weight_decay = args.weight_decay,
         .grad_scale = args.grad_scale,
         .nesterov = args.nesterov},
        nullptr);
    if (error != 0) return error;
  }
  return 0;
}

}  // namespace gradientflow::kernels::cpu
