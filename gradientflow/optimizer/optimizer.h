#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "gradientflow/base/dtype.h"
#include "gradientflow/base/pages.h"
#include "gradientflow/base/status.h"
#include "gradientflow/base/workers.h"
#include "gradientflow/buckets/pool_layout.h"
#include "gradientflow/collectives/collective.h"
#include "gradientflow/optimizer/optimizer_options.h"
#include "gradientflow/optimizer/tiles.h"
#include "kernels/kernels.h"

namespace gradientflow {

// What a step exchanged: the gradients to update from.
struct ExchangedGradients {
  const void* pool = nullptr;  // All of the pool, aligned for `type`.
  DType type = DType::kFloat32;
  // Ascending and disjoint parts of the pool: {{0, elements}} when dense,
  // otherwise ExtentsOf() the sparse plan. Lent for the call.
  std::span<const Extent> extents = {};
  // The pool holds the gradients times this factor. They are divided by it as
  // they are used.
  float scale = 1.0F;
};

// kInvalidArgument names the field, what was expected and what was seen.
Status CheckConfig(const OptimizerOptions& config);
// Requires one pointer per tensor.
Status CheckWeights(const PoolLayout& layout, std::span<float* const> weights);
// Checks all of that, and that no tensor is in two groups.
Status CheckGroups(const PoolLayout& layout,
                   std::span<const OptimizerGroup> groups);

// Chunk-aware momentum SGD (arXiv 1902.06855, Algorithm 1) and LARS (You,
// Gitman, Ginsburg, arXiv 1708.03888). Only what was exchanged is updated:
//   hu <- momentum * hu + rate * (g + weight_decay * w);  w <- w - hu
// (nesterov: w <- w - momentum * hu - rate * (...)). Everywhere else weights
// and momentum keep their bits, because the history of such a chunk is in the
// residual. Tensors that are left alone, or belong to another group, also keep
// them: a training step takes one Update() for each group.
//
// rate is lr for SGD. For LARS it is lr times the layer's
//   eta * |w| / (|g| + weight_decay * |w| + eps),     1 where a norm is 0,
// with |w| over the whole tensor and |g| over its exchanged part.
//
// Equal gradients and weights give equal bits on every rank, whatever its
// kernel table, and also on ranks with a DeviceOptimizer. NOT thread-safe.
class Optimizer {
 public:
  // `layout` and `kernels` outlive the optimizer; the kernels work on host
  // memory. `skip_lars` marks the tensors (by forward index) whose LARS factor
  // is 1, as usual for biases and batch norms; empty for none. `chunk_elements`
  // is as in DeviceOptimizerArgs: the sums of the norms are cut there.
  // `workers`, which share the work, outlive the optimizer; null: the calling
  // thread works alone.
  Optimizer(const PoolLayout& layout, const kernels::CpuKernelTable& kernels,
            std::vector<bool> skip_lars = {}, std::size_t chunk_elements = 0,
            Workers* workers = nullptr);

  // weights[i] are tensor i's float32 master weights, which the caller owns;
  // null leaves the tensor alone. Returns kInvalidArgument with the field or
  // tensor, or kResourceExhausted if there is no memory for the momentum;
  // nothing has changed then. Returns kInternal if a kernel fails; weights and
  // momentum are unspecified then.
  Status Update(const OptimizerOptions& config,
                const ExchangedGradients& gradients,
                std::span<float* const> weights);

  // hu in pool order. Empty before the first Update(), which allocates it.
  std::span<const float> momentum() const;
  // Restores what momentum() returned. Returns kInvalidArgument for another
  // size.
  Status RestoreMomentum(std::span<const std::byte> bytes);

 private:
  Status Validate(const OptimizerOptions& config,
                  const ExchangedGradients& gradients,
                  std::span<float* const> weights) const;
  Status AllocateMomentum();
  void CutPieces(const ExchangedGradients& gradients,
                 std::span<float* const> weights);
  Status LarsRates(const OptimizerOptions& config,
                   const ExchangedGradients& gradients,
                   std::span<float* const> weights);
  Status SumTile(const ExchangedGradients& gradients,
                 std::span<float* const> weights, std::size_t t);
  Status SumSquares(const void* src, DType type, std::size_t n,
                    std::size_t tensor, double* sum) const;
  Status Update(const OptimizerOptions& config,
                const ExchangedGradients& gradients, const TensorPart& piece,
                std::span<float* const> weights) const;

  const PoolLayout& layout_;
  const kernels::CpuKernelTable& kernels_;
  const std::vector<bool> skip_lars_;
  const TensorTiles tiles_;
  Workers* const workers_;
  Pages<float> momentum_;
  // Kept, so that steps allocate nothing.
  std::vector<TensorPart> parts_;         // What was exchanged, by tensor.
  std::vector<TensorPart> pieces_;        // Of the parts.
  std::vector<std::uint8_t> fixed_rate_;  // By tensor: the rate is lr.
  std::vector<float> rates_;              // By tensor.
  std::vector<double> weight_squares_;    // By tile.
  std::vector<double> gradient_squares_;  // By tile.
};

}  // namespace gradientflow
