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

Model ModelOf(const nlohmann::json& json) {
  Model model;
  model.name = json.at("name");
  model.batch = json.at("batch");
  model.backward_seconds = json.at("backward_seconds");
  model.rest_seconds = json.at("rest_seconds");
  for (const auto& tensor : json.at("tensors")) {
    model.tensors.push_back(ModelTensor{
        tensor.at("name"), tensor.at("elements"), tensor.at("ready_seconds")});
  }
  return model;
}

}  // namespace gradientflow::benchmarks
