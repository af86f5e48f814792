#include "data_parallel_pool.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

#include "library.h"

namespace gft {
namespace {

// The strides that autograd gives to gradients, so that it adds in place.
std::vector<int64_t> StridesOf(const at::Tensor& parameter) {
  if (parameter.is_non_overlapping_and_dense()) {
    return parameter.strides().vec();
  }
  return at::empty(parameter.sizes(), at::TensorOptions().device(at::kMeta))
      .strides()
      .vec();
}

// A deleter for views: each keeps the session, which owns the memory, alive.
auto Keep(std::shared_ptr<Session> session) {
  return [session = std::move(session)](void*) mutable { session.reset(); };
}

// Whether position k in memory is the same element in both tensors, for all k.
bool IsLaidOutAlike(const at::Tensor& parameter, const at::Tensor& view) {
  const std::vector<int64_t> strides = StridesOf(parameter);
  for (int64_t d = 0; d < view.dim(); ++d) {
    if (view.size(d) > 1 && strides[d] != view.stride(d)) return false;
  }
  return true;
}

}  // namespace

std::string DescriptionOf(const std::string& name,
                          const at::Tensor& parameter) {
  const std::vector<int64_t> strides = StridesOf(parameter);
  std::string text = name + " [";
  std::vector<int64_t> order;
  for (int64_t d = 0; d < parameter.dim(); ++d) {
    text += (d > 0 ? "x" : "") + std::to_string(parameter.size(d));
    // A dimension of one element may have any stride.
    if (parameter.size(d) > 1) order.push_back(d);
  }
  if (parameter.numel() > 0) {
    std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
      return strides[a] > strides[b];
    });
  }
  if (!std::is_sorted(order.begin(), order.end())) {
    for (size_t i = 0; i < order.size(); ++i) {
      text += (i > 0 ? "," : " in order ") + std::to_string(order[i]);
    }
  }
  return text + "]";
}

at::ScalarType PoolTypeFor(const std::vector<at::Tensor>& parameters) {
  const at::ScalarType first = parameters.at(0).scalar_type();
  const bool alike =
      std::all_of(parameters.begin(), parameters.end(),
                  [first](const auto& p) { return p.scalar_type() == first; });
  return alike && IsGradientType(first) ? first : at::kFloat;
}

GradientPool::GradientPool(std::shared_ptr<Session> session,
                           at::ScalarType pool_type,
                           std::vector<std::string> names,
                           std::vector<at::Tensor> parameters)
    : names_(std::move(names)),
      parameters_(std::move(parameters)),
      session_(std::move(session)),
      given_(parameters_.size()) {
  const Session::Use use(*session_);
  const auto options =
      at::TensorOptions(pool_type).device(parameters_.at(0).device());
  const auto keep = Keep(session_);
  void* data = nullptr;
  size_t bytes = 0;
  Check(gf_session_pool(use, &data, &bytes), "the gradient pool");
  const auto elements =
      static_cast<int64_t>(bytes / at::elementSize(pool_type));
  // Torch would ask the driver where the memory is, and is told of the host for
  // that of an empty tensor.
  const at::Device device = options.device();
  all_ = at::from_blob(data, {elements}, keep, options, device);
  for (size_t i = 0; i < parameters_.size(); ++i) {
    Check(gf_session_gradient(use, i, &data, &bytes), "a gradient's place");
    views_.push_back(at::from_blob(data, parameters_[i].sizes(),
                                   StridesOf(parameters_[i]), keep, options,
                                   device));
  }
}

at::Tensor GradientPool::MakeView(size_t i) const {
  const at::Tensor& view = views_[i];
  return at::from_blob(view.mutable_data_ptr(), view.sizes(), view.strides(),
                       Keep(session_), view.options(), view.device());
}

const at::Tensor& GradientPool::View(size_t i) {
  if (!given_[i].defined() || !IsView(i, given_[i])) given_[i] = MakeView(i);
  return given_[i];
}

bool GradientPool::HasGradient(size_t i) const {
  return parameters_[i].grad().defined();
}

bool GradientPool::IsView(size_t i, const at::Tensor& gradient) const {
  return gradient.layout() == at::kStrided &&
         gradient.scalar_type() == views_[i].scalar_type() &&
         gradient.const_data_ptr() == views_[i].const_data_ptr() &&
         gradient.sizes() == views_[i].sizes() &&
         gradient.strides() == views_[i].strides();
}

bool GradientPool::PutIn(size_t i, const at::Tensor& gradient) {
  const at::Tensor& parameter = parameters_[i];
  const at::Tensor& view = views_[i];
  if (parameter.grad().defined() || gradient.layout() != at::kStrided ||
      gradient.scalar_type() != view.scalar_type() ||
      parameter.scalar_type() != view.scalar_type() ||
      gradient.device() != view.device() || gradient.sizes() != view.sizes()) {
    return false;
  }
  const at::NoGradGuard no_grad;
  view.copy_(gradient);
  parameter.mutable_grad() = View(i);
  return true;
}

void GradientPool::TakeIn(size_t i) {
  const at::Tensor& parameter = parameters_[i];
  at::Tensor& gradient = parameter.mutable_grad();
  if (IsView(i, gradient)) return;
  TORCH_CHECK_VALUE(gradient.layout() == at::kStrided, "the gradient of '",
                    names_[i], "' has layout ", gradient.layout(),
                    ", expected a dense one: an Embedding with sparse=True? "
                    "Use sparse=False");
  TORCH_CHECK_VALUE(gradient.device() == views_[i].device(), "'", names_[i],
                    "' has a gradient on ", gradient.device(), ", but was on ",
                    views_[i].device(),
                    " when DataParallel was made: move a model before that");
  const at::NoGradGuard no_grad;
  views_[i].copy_(gradient);
  if (parameter.scalar_type() == views_[i].scalar_type()) gradient = View(i);
}

void GradientPool::Settle(size_t i) {
  const at::Tensor& parameter = parameters_[i];
  TORCH_CHECK_VALUE(IsLaidOutAlike(parameter, views_[i]), "'", names_[i],
                    "' has strides ", parameter.strides(), ", but had ",
                    views_[i].strides(),
                    " when DataParallel was made: change a model's memory "
                    "format before that");
  TORCH_CHECK_VALUE(parameter.grad().sizes() == views_[i].sizes(),
                    "the gradient of '", names_[i], "' has shape ",
                    parameter.grad().sizes(), ", expected ", views_[i].sizes());
  TakeIn(i);
}

void GradientPool::GiveOut(size_t i) {
  const at::Tensor& parameter = parameters_[i];
  at::Tensor& gradient = parameter.mutable_grad();
  if (parameter.scalar_type() == views_[i].scalar_type()) {
    if (!gradient.defined()) gradient = View(i);
    return;
  }
  const at::NoGradGuard no_grad;
  if (!gradient.defined()) {
    gradient = at::empty_strided(parameter.sizes(), StridesOf(parameter),
                                 parameter.options().requires_grad(false));
  }
  gradient.copy_(views_[i]);
}

std::vector<size_t> GradientPool::WithValues(
    const std::vector<size_t>& parameters) const {
  const at::NoGradGuard no_grad;
  std::vector<size_t> asked;
  std::vector<at::Tensor> answers;
  for (const size_t i : parameters) {
    const at::Tensor& view = views_[i];
    if (view.numel() == 0) continue;
    asked.push_back(i);
    answers.push_back(at::any(at::isfinite(view).logical_and_(view)));
  }
  if (asked.empty()) return {};
  const at::Tensor here = at::stack(answers).cpu();
  std::vector<size_t> found;
  for (size_t k = 0; k < asked.size(); ++k) {
    if (here.const_data_ptr<bool>()[k]) found.push_back(asked[k]);
  }
  return found;
}

void GradientPool::MoveOut(size_t i) {
  const at::NoGradGuard no_grad;
  at::Tensor& gradient = parameters_[i].mutable_grad();
  if (gradient.defined() && IsView(i, gradient)) gradient = gradient.clone();
}

void GradientPool::Detach(bool keep) {
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (keep) {
      MoveOut(i);
      continue;
    }
    at::Tensor& gradient = parameters_[i].mutable_grad();
    if (gradient.defined() && IsView(i, gradient)) gradient = at::Tensor();
  }
}

}  // namespace gft
