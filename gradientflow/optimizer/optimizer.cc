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
                     std::vector<bool> skip_lars, std::size_t chunk_elements)
    : layout_(layout),
      kernels_(kernels),
      skip_lars_(std::move(skip_lars)),
      tiles_(CutTiles(layout, chunk_elements)) {}

Status Optimizer::Validate(const OptimizerOptions& config,
                           const ExchangedGradients& gradients,
                           std::span<float* const> weights) const {
  GF_RETURN_IF_ERROR(CheckConfig(config));
  if (!IsGradientType(gradients.type)) {
    return Invalid(StrCat("optimizer: expected gradients of float32, float16 ",
                          "or bfloat16, seen ", Name(gradients.type)));
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

// Cuts the exchanged extents at the borders of tensors, then updates the
// exchanged parts of one tensor after another.
Status Optimizer::Step(const OptimizerOptions& config,
                       const ExchangedGradients& gradients,
                       std::span<float* const> weights) {
  GF_RETURN_IF_ERROR(Validate(config, gradients, weights));
  GF_RETURN_IF_ERROR(AllocateMomentum());
  parts_.clear();
  for (const Extent& extent : gradients.extents) {
    layout_.AppendParts(extent, &parts_);
  }
  // Extents ascend, so the parts of one tensor are adjacent.
  for (auto first = parts_.begin(); first != parts_.end();) {
    const std::size_t tensor = first->tensor;
    const auto last = std::find_if(
        first, parts_.end(),
        [tensor](const TensorPart& part) { return part.tensor != tensor; });
    if (weights[tensor] != nullptr) {
      GF_RETURN_IF_ERROR(
          UpdateTensor(config, gradients, {first, last}, weights[tensor]));
    }
    first = last;
  }
  return {};
}

Status Optimizer::SumSquares(const void* src, DType type, std::size_t n,
                             std::size_t tensor, double* sum) const {
  return KernelStatus(kernels_, "sum_squares",
                      kernels_.sum_squares({src, type, n, sum}, nullptr),
                      tensor);
}

// Does what tile_squares and lars_rates do on a device, tile by tile, so that
// the sums round in the same way.
Result<float> Optimizer::LarsRate(const OptimizerOptions& config,
                                  const ExchangedGradients& gradients,
                                  std::span<const TensorPart> parts,
                                  const float* weights) {
  const std::size_t tensor = parts.front().tensor;
  const std::uint64_t first = tiles_.first_tile[tensor];
  const std::uint64_t last = tiles_.first_tile[tensor + 1];
  weight_squares_.assign(last - first, 0);
  gradient_squares_.assign(last - first, 0);
  auto part = parts.begin();
  for (std::uint64_t t = first; t < last; ++t) {
    const kernels::Tile& tile = tiles_.tiles[t];
    GF_RETURN_IF_ERROR(SumSquares(weights + tile.tensor_begin, DType::kFloat32,
                                  tile.count, tensor,
                                  &weight_squares_[t - first]));
    const std::uint64_t end = tile.pool_begin + tile.count;
    for (; part != parts.end() && part->pool_begin < end; ++part) {
      const std::uint64_t part_end = part->pool_begin + part->count;
      const std::uint64_t from =
          std::max(tile.pool_begin, std::uint64_t{part->pool_begin});
      if (from < part_end) {
        GF_RETURN_IF_ERROR(SumSquares(ElementAt(gradients, from),
                                      gradients.type,
                                      std::min(part_end, end) - from, tensor,
                                      &gradient_squares_[t - first]));
      }
      if (part_end > end) break;  // The next tile has more of it.
    }
  }
  const std::uint64_t tiles_of_one[] = {0, last - first};
  float rate = 0;
  kernels::LarsRatesArgs args = {};
  args.first_tile = tiles_of_one;
  args.tensors = 1;
  args.weight_squares = weight_squares_.data();
  args.gradient_squares = gradient_squares_.data();
  args.lr = config.lr;
  args.eta = config.lars_eta;
  args.eps = config.lars_eps;
  args.weight_decay = config.weight_decay;
  args.rates = &rate;
  args.grad_scale = 1.0F / gradients.scale;
  GF_RETURN_IF_ERROR(KernelStatus(
      kernels_, "lars_rates",
      kernels::CpuChunkKernels().lars_rates(args, nullptr), tensor));
  return rate;
}

// One rate for the whole tensor, one kernel for each part of it.
Status Optimizer::UpdateTensor(const OptimizerOptions& config,
                               const ExchangedGradients& gradients,
                               std::span<const TensorPart> parts,
                               float* weights) {
  const std::size_t tensor = parts.front().tensor;
  float rate = config.lr;
  if (config.kind == OptimizerOptions::Kind::kLars &&
      (skip_lars_.empty() || !skip_lars_[tensor])) {
    const Result<float> lars = LarsRate(config, gradients, parts, weights);
    if (!lars.ok()) return lars.status();
    rate = lars.value();
  }
  for (const TensorPart& part : parts) {
    const int error =
        kernels_.sgd({.weights = weights + part.begin,
                      .momentum_buf = momentum_.get() + part.pool_begin,
                      .grads = ElementAt(gradients, part.pool_begin),
                      .type = gradients.type,
                      .n = part.count,
                      .lr = rate,
                      .momentum = config.momentum,
                      .weight_decay = config.weight_decay,
                      .grad_scale = 1.0F / gradients.scale,
                      .nesterov = config.nesterov},
                     nullptr);
    GF_RETURN_IF_ERROR(KernelStatus(kernels_, "sgd", error, tensor));
  }
  return {};
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
