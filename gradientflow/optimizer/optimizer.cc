#include "gradientflow/optimizer/optimizer.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <utility>

#include "gradientflow/base/str_cat.h"
#include "kernels/chunk_kernels.h"

namespace gradientflow {
namespace {

// What a thread updates at a time.
constexpr std::size_t kPieceElements = std::size_t{64} << 10;

Status Invalid(std::string message) {
  return {StatusCode::kInvalidArgument, std::move(message)};
}

Status KernelStatus(const kernels::CpuKernelTable& kernels, const char* kernel,
                    int error, std::size_t tensor) {
  if (error == 0) return {};
  return {StatusCode::kInternal,
          StrCat("optimizer: kernel ", kernel, " of ", kernels.name,
                 " failed on tensor ", tensor, " with device error ", error)};
}

const void* ElementAt(const ExchangedGradients& gradients, std::size_t i) {
  return static_cast<const std::byte*>(gradients.pool) +
         i * SizeOf(gradients.type);
}

// The value must be finite and at least 0.
Status CheckField(const char* name, float value) {
  if (std::isfinite(value) && value >= 0) return {};
  return Invalid(StrCat("optimizer ", name,
                        ": expected a finite value of at least 0, seen ",
                        value));
}

Status CheckExtents(std::span<const Extent> extents, std::size_t elements) {
  std::size_t end = 0;
  for (const Extent& extent : extents) {
    if (extent.begin < end || extent.begin > elements ||
        extent.count > elements - extent.begin) {
      return Invalid(StrCat(
          "optimizer: expected ascending, disjoint extents of a pool of ",
          elements, " elements, seen [", extent.begin, ", +", extent.count,
          ") after element ", end));
    }
    end = extent.begin + extent.count;
  }
  return {};
}

}  // namespace

Status CheckConfig(const OptimizerOptions& config) {
  GF_RETURN_IF_ERROR(CheckField("lr", config.lr));
  GF_RETURN_IF_ERROR(CheckField("momentum", config.momentum));
  GF_RETURN_IF_ERROR(CheckField("weight_decay", config.weight_decay));
  GF_RETURN_IF_ERROR(CheckField("lars_eta", config.lars_eta));
  GF_RETURN_IF_ERROR(CheckField("lars_eps", config.lars_eps));
  if (config.momentum >= 1) {
    return Invalid(StrCat("optimizer momentum: expected a value in [0, 1), ",
                          "seen ", config.momentum));
  }
  return {};
}

Status CheckWeights(const PoolLayout& layout, std::span<float* const> weights) {
  if (weights.size() != layout.tensors()) {
    return Invalid(StrCat("optimizer: expected weights of ", layout.tensors(),
                          " tensors, seen ", weights.size()));
  }
  return {};
}

Status CheckGroups(const PoolLayout& layout,
                   std::span<const OptimizerGroup> groups) {
  std::vector<bool> taken(layout.tensors(), false);
  for (const OptimizerGroup& group : groups) {
    GF_RETURN_IF_ERROR(CheckConfig(group.config));
    GF_RETURN_IF_ERROR(CheckWeights(layout, group.weights));
    for (std::size_t i = 0; i < group.weights.size(); ++i) {
      if (group.weights[i] == nullptr) continue;
      if (taken[i]) {
        return Invalid(StrCat("optimizer: tensor ", i,
                              " is in two groups, expected at most one"));
      }
      taken[i] = true;
    }
  }
  return {};
}

Optimizer::Optimizer(const PoolLayout& layout,
                     const kernels::CpuKernelTable& kernels,
                     std::vector<bool> skip_lars, std::size_t chunk_elements,
                     Workers* workers)
    : layout_(layout),
      kernels_(kernels),
      skip_lars_(std::move(skip_lars)),
      tiles_(CutTiles(layout, chunk_elements)),
      workers_(workers) {}

Status Optimizer::Validate(const OptimizerOptions& config,
                           const ExchangedGradients& gradients,
                           std::span<float* const> weights) const {
  GF_RETURN_IF_ERROR(CheckConfig(config));
  if (!IsGradientType(gradients.type)) {
    return Invalid(StrCat("optimizer: expected gradients of ",
                          GradientTypeNames(), ", seen ",
                          Name(gradients.type)));
  }
  if (gradients.pool == nullptr && !gradients.extents.empty()) {
    return Invalid("optimizer: expected a pool, seen a null pointer");
  }
  GF_RETURN_IF_ERROR(CheckExtents(gradients.extents, layout_.elements()));
  GF_RETURN_IF_ERROR(CheckWeights(layout_, weights));
  if (!skip_lars_.empty() && skip_lars_.size() != layout_.tensors()) {
    return Invalid(StrCat("optimizer: expected skip_lars for ",
                          layout_.tensors(), " tensors or none, seen ",
                          skip_lars_.size()));
  }
  return {};
}

Status Optimizer::AllocateMomentum() {
  if (momentum_ != nullptr) return {};
  momentum_ = NewPages<float>(layout_.elements());
  if (momentum_ != nullptr) return {};
  return {StatusCode::kResourceExhausted,
          StrCat("optimizer: no memory for the momentum of ",
                 layout_.elements(), " elements")};
}

// Cuts the exchanged extents at the borders of tensors, and then into pieces,
// among which threads can be divided. Leaves out tensors without weights.
void Optimizer::CutPieces(const ExchangedGradients& gradients,
                          std::span<float* const> weights) {
  parts_.clear();
  for (const Extent& extent : gradients.extents) {
    layout_.AppendParts(extent, &parts_);
  }
  std::erase_if(parts_, [&](const TensorPart& part) {
    return weights[part.tensor] == nullptr;
  });
  pieces_.clear();
  for (const TensorPart& part : parts_) {
    for (std::size_t done = 0; done < part.count; done += kPieceElements) {
      pieces_.push_back({part.tensor, part.begin + done, part.pool_begin + done,
                         std::min(kPieceElements, part.count - done)});
    }
  }
}

Status Optimizer::Update(const OptimizerOptions& config,
                         const ExchangedGradients& gradients,
                         std::span<float* const> weights) {
  GF_RETURN_IF_ERROR(Validate(config, gradients, weights));
  GF_RETURN_IF_ERROR(AllocateMomentum());
  CutPieces(gradients, weights);
  rates_.assign(layout_.tensors(), config.lr);
  if (config.kind == OptimizerOptions::Kind::kLars) {
    GF_RETURN_IF_ERROR(LarsRates(config, gradients, weights));
  }
  return RunPass(workers_, pieces_.size(), layout_.elements(),
                 [&](std::size_t i) {
                   return Update(config, gradients, pieces_[i], weights);
                 });
}

Status Optimizer::SumSquares(const void* src, DType type, std::size_t n,
                             std::size_t tensor, double* sum) const {
  return KernelStatus(kernels_, "sum_squares",
                      kernels_.sum_squares({src, type, n, sum}, nullptr),
                      tensor);
}

// Does what tile_squares and lars_rates do on a device, tile by tile, so that
// the sums round in the same way.
Status Optimizer::LarsRates(const OptimizerOptions& config,
                            const ExchangedGradients& gradients,
                            std::span<float* const> weights) {
  fixed_rate_.assign(layout_.tensors(), 1);
  for (const TensorPart& part : parts_) {
    const bool skip = !skip_lars_.empty() && skip_lars_[part.tensor];
    fixed_rate_[part.tensor] = skip ? 1 : 0;
  }
  weight_squares_.assign(tiles_.tiles.size(), 0);
  gradient_squares_.assign(tiles_.tiles.size(), 0);
  GF_RETURN_IF_ERROR(
      RunPass(workers_, tiles_.tiles.size(), layout_.elements(),
              [&](std::size_t t) { return SumTile(gradients, weights, t); }));
  kernels::LarsRatesArgs args = {};
  args.first_tile = tiles_.first_tile.data();
  args.tensors = layout_.tensors();
  args.weight_squares = weight_squares_.data();
  args.gradient_squares = gradient_squares_.data();
  args.skip = fixed_rate_.data();
  args.lr = config.lr;
  args.eta = config.lars_eta;
  args.eps = config.lars_eps;
  args.weight_decay = config.weight_decay;
  args.rates = rates_.data();
  args.grad_scale = 1.0F / gradients.scale;
  return KernelStatus(kernels_, "lars_rates",
                      kernels::CpuChunkKernels().lars_rates(args, nullptr), 0);
}

// The squares of tile `t` of the weights, and of what was exchanged of it.
Status Optimizer::SumTile(const ExchangedGradients& gradients,
                          std::span<float* const> weights, std::size_t t) {
  const kernels::Tile& tile = tiles_.tiles[t];
  if (fixed_rate_[tile.tensor] != 0) return {};
  GF_RETURN_IF_ERROR(SumSquares(weights[tile.tensor] + tile.tensor_begin,
                                DType::kFloat32, tile.count, tile.tensor,
                                &weight_squares_[t]));
  const std::size_t begin = tile.pool_begin;
  const std::size_t end = begin + tile.count;
  // Parts ascend in the pool.
  auto part = std::partition_point(
      parts_.begin(), parts_.end(), [begin](const TensorPart& before) {
        return before.pool_begin + before.count <= begin;
      });
  for (; part != parts_.end() && part->pool_begin < end; ++part) {
    const std::size_t from = std::max(begin, part->pool_begin);
    const std::size_t to = std::min(end, part->pool_begin + part->count);
    GF_RETURN_IF_ERROR(SumSquares(ElementAt(gradients, from), gradients.type,
                                  to - from, tile.tensor,
                                  &gradient_squares_[t]));
  }
  return {};
}

Status Optimizer::Update(const OptimizerOptions& config,
                         const ExchangedGradients& gradients,
                         const TensorPart& piece,
                         std::span<float* const> weights) const {
  const int error =
      kernels_.sgd({.weights = weights[piece.tensor] + piece.begin,
                    .momentum_buf = momentum_.get() + piece.pool_begin,
                    .grads = ElementAt(gradients, piece.pool_begin),
                    .type = gradients.type,
                    .n = piece.count,
                    .lr = rates_[piece.tensor],
                    .momentum = config.momentum,
                    .weight_decay = config.weight_decay,
                    .grad_scale = 1.0F / gradients.scale,
                    .nesterov = config.nesterov},
                   nullptr);
  return KernelStatus(kernels_, "sgd", error, piece.tensor);
}

std::span<const float> Optimizer::momentum() const {
  if (momentum_ == nullptr) return {};
  return {momentum_.get(), layout_.elements()};
}

Status Optimizer::RestoreMomentum(std::span<const std::byte> bytes) {
  if (bytes.empty()) {
    momentum_.reset();
    return {};
  }
  const std::size_t expected = layout_.elements() * sizeof(float);
  if (bytes.size() != expected) {
    return Invalid(StrCat("momentum: expected 0 or ", expected, " bytes, seen ",
                          bytes.size()));
  }
  GF_RETURN_IF_ERROR(AllocateMomentum());
  std::memcpy(momentum_.get(), bytes.data(), bytes.size());
  return {};
}

}  // namespace gradientflow
