#include "benchmarks/scaling/model.h"

#include <algorithm>
#include <numeric>

namespace gradientflow::benchmarks {

std::size_t Model::elements() const {
  std::size_t sum = 0;
  for (const ModelTensor& tensor : tensors) sum += tensor.elements;
  return sum;
}

std::vector<TensorSpec> Model::Specs() const {
  std::vector<TensorSpec> specs;
  for (const ModelTensor& tensor : tensors) {
    specs.push_back(TensorSpec{tensor.name, tensor.elements});
  }
  return specs;
}

std::vector<std::size_t> Model::ReadyOrder() const {
  std::vector<std::size_t> order(tensors.size());
  std::iota(order.rbegin(), order.rend(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [this](std::size_t a, std::size_t b) {
                     return tensors[a].ready_seconds < tensors[b].ready_seconds;
                   });
  return order;
}

}  // namespace gradientflow::benchmarks
