#include "benchmarks/training/network.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "benchmarks/lib/random.h"

namespace gradientflow::benchmarks {
namespace {

// y += a * x.
template <typename Real>
void AddScaled(Real a, const Real* __restrict x, Real* __restrict y,
               std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) y[i] += a * x[i];
}

// Eight sums, so that the compiler may use vectors without reordering.
template <typename Real>
Real Dot(const Real* __restrict x, const Real* __restrict y, std::size_t n) {
  Real sums[8] = {};
  std::size_t i = 0;
  for (; i + 8 <= n; i += 8) {
    for (std::size_t j = 0; j < 8; ++j) sums[j] += x[i + j] * y[i + j];
  }
  for (; i < n; ++i) sums[0] += x[i] * y[i];
  return ((sums[0] + sums[4]) + (sums[1] + sums[5])) +
         ((sums[2] + sums[6]) + (sums[3] + sums[7]));
}

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

template <typename Real>
void Network<Real>::ForwardLayer(std::size_t layer, const Real* in,
                                 std::vector<Real>& out) {
  const std::size_t inputs = widths_[layer];
  const std::size_t outputs = widths_[layer + 1];
  const Real* const weight = tensors_[2 * layer].values.data();
  const std::vector<Real>& bias = tensors_[2 * layer + 1].values;
  const bool last = layer + 2 == widths_.size();
  out.resize(samples_ * outputs);
  for (std::size_t s = 0; s < samples_; ++s) {
    Real* const row = out.data() + s * outputs;
    std::copy(bias.begin(), bias.end(), row);
    for (std::size_t i = 0; i < inputs; ++i) {
      const Real x = in[s * inputs + i];
      if (x != 0) AddScaled(x, weight + i * outputs, row, outputs);
    }
    if (last) continue;
    for (std::size_t o = 0; o < outputs; ++o) {
      row[o] = std::max(row[o], Real{0});
    }
  }
}

// Turns the last outputs into softmax minus one-hot.
template <typename Real>
double Network<Real>::Loss(std::span<const int> labels) {
  const std::size_t classes = widths_.back();
  double loss = 0;
  correct_ = 0;
  for (std::size_t s = 0; s < samples_; ++s) {
    Real* const row = outputs_.back().data() + s * classes;
    const auto label = static_cast<std::size_t>(labels[s]);
    const Real* const best = std::max_element(row, row + classes);
    correct_ += best == row + label ? 1 : 0;
    const Real top = *best;
    const Real wanted = row[label] - top;
    Real sum = 0;
    for (std::size_t c = 0; c < classes; ++c) {
      row[c] = std::exp(row[c] - top);
      sum += row[c];
    }
    loss += static_cast<double>(std::log(sum) - wanted);
    for (std::size_t c = 0; c < classes; ++c) row[c] /= sum;
    row[label] -= 1;
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
    ForwardLayer(layer, in, outputs_[layer]);
    in = outputs_[layer].data();
  }
  return Loss(labels);
}

template <typename Real>
void Network<Real>::Backward(Real scale,
                             const std::function<Real*(std::size_t)>& gradient,
                             const std::function<void(std::size_t)>& ready) {
  std::vector<Real> delta = std::move(outputs_.back());
  for (Real& d : delta) d *= scale;
  for (std::size_t layer = outputs_.size(); layer-- > 0;) {
    const std::size_t inputs = widths_[layer];
    const std::size_t outputs = widths_[layer + 1];
    const Real* const in =
        layer > 0 ? outputs_[layer - 1].data() : inputs_.data();
    Real* const bias = gradient(2 * layer + 1);
    std::fill(bias, bias + outputs, Real{0});
    for (std::size_t s = 0; s < samples_; ++s) {
      AddScaled(Real{1}, delta.data() + s * outputs, bias, outputs);
    }
    ready(2 * layer + 1);
    Real* const weight = gradient(2 * layer);
    std::fill(weight, weight + inputs * outputs, Real{0});
    for (std::size_t s = 0; s < samples_; ++s) {
      for (std::size_t i = 0; i < inputs; ++i) {
        const Real x = in[s * inputs + i];
        if (x == 0) continue;
        AddScaled(x, delta.data() + s * outputs, weight + i * outputs, outputs);
      }
    }
    ready(2 * layer);
    if (layer == 0) return;
    std::vector<Real> below(samples_ * inputs);
    const std::vector<Real>& w = tensors_[2 * layer].values;
    for (std::size_t s = 0; s < samples_; ++s) {
      for (std::size_t i = 0; i < inputs; ++i) {
        if (in[s * inputs + i] <= 0) continue;  // ReLU.
        below[s * inputs + i] =
            Dot(w.data() + i * outputs, delta.data() + s * outputs, outputs);
      }
    }
    delta = std::move(below);
  }
}

template class Network<float>;
template class Network<double>;

}  // namespace gradientflow::benchmarks
