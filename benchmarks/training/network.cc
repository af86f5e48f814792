#include "benchmarks/training/network.h"

#include <cmath>
#include <eigen3/Eigen/Core>
#include <utility>

#include "benchmarks/lib/random.h"

namespace gradientflow::benchmarks {
namespace {

// Numbers of a vector or a span, row by row: one row per sample, or per input.
template <typename Real>
using Matrix =
    Eigen::Matrix<Real, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
template <typename Real>
using View = Eigen::Map<Matrix<Real>>;
template <typename Real>
using ConstView = Eigen::Map<const Matrix<Real>>;

}  // namespace

template <typename Real>
Network<Real>::Network(std::vector<std::size_t> widths, std::uint64_t seed)
    : widths_(std::move(widths)), outputs_(widths_.size() - 1) {
  Random random(seed);
  for (std::size_t layer = 0; layer + 1 < widths_.size(); ++layer) {
    const std::string name = "fc" + std::to_string(layer + 1);
    const std::size_t in = widths_[layer];
    const std::size_t out = widths_[layer + 1];
    Tensor weight{name + ".weight", std::vector<Real>(in * out)};
    const double deviation = std::sqrt(2.0 / static_cast<double>(in));
    for (Real& w : weight.values) {
      w = static_cast<Real>(deviation * random.Normal());
    }
    tensors_.push_back(std::move(weight));
    tensors_.push_back(Tensor{name + ".bias", std::vector<Real>(out)});
  }
}

// Turns the last outputs into softmax minus one-hot.
template <typename Real>
double Network<Real>::Loss(std::span<const int> labels) {
  View<Real> out(outputs_.back().data(), samples_, widths_.back());
  double loss = 0;
  correct_ = 0;
  for (std::size_t s = 0; s < samples_; ++s) {
    auto row = out.row(s).array();
    Eigen::Index best = 0;
    row -= row.maxCoeff(&best);
    correct_ += best == labels[s] ? 1 : 0;
    const Real wanted = row(labels[s]);
    row = row.exp();
    const Real sum = row.sum();
    loss += static_cast<double>(std::log(sum) - wanted);
    row /= sum;
    row(labels[s]) -= 1;
  }
  return loss;
}

template <typename Real>
double Network<Real>::Forward(std::span<const Real> inputs,
                              std::span<const int> labels) {
  inputs_ = inputs;
  samples_ = labels.size();
  const Real* in = inputs.data();
  for (std::size_t layer = 0; layer < outputs_.size(); ++layer) {
    const std::size_t wide = widths_[layer + 1];
    outputs_[layer].resize(samples_ * wide);
    View<Real> out(outputs_[layer].data(), samples_, wide);
    out.noalias() = ConstView<Real>(in, samples_, widths_[layer]) *
                    ConstView<Real>(tensors_[2 * layer].values.data(),
                                    widths_[layer], wide);
    out.rowwise() +=
        ConstView<Real>(tensors_[2 * layer + 1].values.data(), 1, wide).row(0);
    if (layer + 1 < outputs_.size()) out = out.cwiseMax(Real{0});
    in = out.data();
  }
  return Loss(labels);
}

template <typename Real>
void Network<Real>::Backward(Real scale,
                             const std::function<Real*(std::size_t)>& gradient,
                             const std::function<void(std::size_t)>& ready) {
  Matrix<Real> delta =
      scale * ConstView<Real>(outputs_.back().data(), samples_, widths_.back());
  for (std::size_t layer = outputs_.size(); layer-- > 0;) {
    const std::size_t inputs = widths_[layer];
    const std::size_t wide = widths_[layer + 1];
    const ConstView<Real> in(
        layer > 0 ? outputs_[layer - 1].data() : inputs_.data(), samples_,
        inputs);
    View<Real>(gradient(2 * layer + 1), 1, wide) = delta.colwise().sum();
    ready(2 * layer + 1);
    View<Real>(gradient(2 * layer), inputs, wide).noalias() =
        in.transpose() * delta;
    ready(2 * layer);
    if (layer == 0) return;
    const ConstView<Real> weight(tensors_[2 * layer].values.data(), inputs,
                                 wide);
    const Matrix<Real> below = delta * weight.transpose();
    delta = (in.array() > 0).select(below, Real{0});  // ReLU.
  }
}

template class Network<float>;
template class Network<double>;

}  // namespace gradientflow::benchmarks
