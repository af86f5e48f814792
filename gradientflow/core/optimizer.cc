#include "gradientflow/core/optimizer.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <new>
#include <string>
#include <utility>

#include "gradientflow/base/str_cat.h"

namespace gradientflow {
namespace {

Status Invalid(std::string message) {
  return {StatusCode::kInvalidArgument, std::move(message)};
}

Status KernelStatus(const kernels::KernelTable& kernels, const char* kernel,
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

// Finite, at least 0.
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

Status CheckConfig(const OptimizerConfig& config) {
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
  for (std::size_t i = 0; i < weights.size(); ++i) {
    if (weights[i] == nullptr && layout.tensor_elements(i) > 0) {
      return Invalid(StrCat("optimizer: expected weights of tensor ", i, " (",
                            layout.tensor_elements(i),
                            " elements), seen a null pointer"));
    }
  }
  return {};
}

Optimizer::Optimizer(const PoolLayout& layout,
                     const kernels::KernelTable& kernels,
                     std::vector<bool> skip_lars)
    : layout_(layout), kernels_(kernels), skip_lars_(std::move(skip_lars)) {}

Status Optimizer::Validate(const OptimizerConfig& config,
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
  momentum_.reset(new (std::nothrow) float[layout_.elements()]());
  if (momentum_ != nullptr) return {};
  return {StatusCode::kResourceExhausted,
          StrCat("optimizer: no memory for the momentum of ",
                 layout_.elements(), " elements")};
}

Status Optimizer::Step(const OptimizerConfig& config,
                       const ExchangedGradients& gradients,
                       std::span<float* const> weights) {
  GF_RETURN_IF_ERROR(Validate(config, gradients, weights));
  GF_RETURN_IF_ERROR(AllocateMomentum());
  parts_.clear();
  for (const Extent& extent : gradients.extents) {
    layout_.AppendParts(extent, &parts_);
  }
  // Extents ascend, so the parts of one tensor lie next to each other.
  for (auto first = parts_.begin(); first != parts_.end();) {
    const std::size_t tensor = first->tensor;
    const auto last = std::find_if(
        first, parts_.end(),
        [tensor](const TensorPart& part) { return part.tensor != tensor; });
    GF_RETURN_IF_ERROR(
        UpdateTensor(config, gradients, {first, last}, weights[tensor]));
    first = last;
  }
  return {};
}

Result<float> Optimizer::LarsFactor(const OptimizerConfig& config,
                                    const ExchangedGradients& gradients,
                                    std::span<const TensorPart> parts,
                                    const float* weights) const {
  const std::size_t tensor = parts.front().tensor;
  double weight_sum = 0;
  int error = kernels_.sum_squares(
      {weights, DType::kFloat32, layout_.tensor_elements(tensor), &weight_sum},
      nullptr);
  GF_RETURN_IF_ERROR(KernelStatus(kernels_, "sum_squares", error, tensor));
  double gradient_sum = 0;
  for (const TensorPart& part : parts) {
    error = kernels_.sum_squares({ElementAt(gradients, part.pool_begin),
                                  gradients.type, part.count, &gradient_sum},
                                 nullptr);
    GF_RETURN_IF_ERROR(KernelStatus(kernels_, "sum_squares", error, tensor));
  }
  if (weight_sum == 0 || gradient_sum == 0) return 1.0F;
  const double weight_norm = std::sqrt(weight_sum);
  const double factor =
      config.lars_eta * weight_norm /
      (double{1.0F / gradients.scale} * std::sqrt(gradient_sum) +
       double{config.weight_decay} * weight_norm + double{config.lars_eps});
  return static_cast<float>(factor);
}

Status Optimizer::UpdateTensor(const OptimizerConfig& config,
                               const ExchangedGradients& gradients,
                               std::span<const TensorPart> parts,
                               float* weights) {
  const std::size_t tensor = parts.front().tensor;
  float rate = config.lr;
  if (config.kind == OptimizerConfig::Kind::kLars &&
      (skip_lars_.empty() || !skip_lars_[tensor])) {
    const Result<float> factor = LarsFactor(config, gradients, parts, weights);
    if (!factor.ok()) return factor.status();
    rate *= factor.value();
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
