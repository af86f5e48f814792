#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace gradientflow::benchmarks {

// A multi-layer perceptron: affine layers with ReLU between them and a
// softmax cross-entropy loss. `Real` is float, or double for checks.
// NOT thread-safe.
template <typename Real>
class Network {
 public:
  struct Tensor {
    std::string name;          // "fc1.weight", "fc1.bias", "fc2.weight", ...
    std::vector<Real> values;  // Weights: [inputs][outputs].
  };

  // `widths`: inputs, hidden layers, classes; at least two. Weights are drawn
  // from a normal distribution of variance 2 / inputs (He et al. 2015), biases
  // are zero.
  Network(std::vector<std::size_t> widths, std::uint64_t seed);

  std::vector<Tensor>& tensors() { return tensors_; }  // In forward order.

  // Returns the sum of the loss over the samples. `inputs` has labels.size()
  // rows of widths[0], and is lent until Backward() returns.
  double Forward(std::span<const Real> inputs, std::span<const int> labels);

  // How many samples of the last Forward() were classified correctly.
  std::size_t correct() const { return correct_; }

  // Computes the gradients of `scale` times the sum returned by Forward(), from
  // the last tensor to the first: gradient(i) returns where tensor i's goes (as
  // many elements as the tensor; they are overwritten), then ready(i) is
  // called.
  void Backward(Real scale, const std::function<Real*(std::size_t)>& gradient,
                const std::function<void(std::size_t)>& ready);

 private:
  double Loss(std::span<const int> labels);

  std::vector<std::size_t> widths_;
  std::vector<Tensor> tensors_;
  std::span<const Real> inputs_;
  std::vector<std::vector<Real>> outputs_;  // Per layer; the last becomes the
                                            // loss's gradient to its input.
  std::size_t samples_ = 0;
  std::size_t correct_ = 0;
};

extern template class Network<float>;
extern template class Network<double>;

}  // namespace gradientflow::benchmarks
