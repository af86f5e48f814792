#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "gradientflow/base/status.h"

namespace gradientflow::benchmarks {

struct ModelTensor {
  std::string name;
  std::size_t elements = 0;
  // The gradient is complete, after backward began.
  double ready_seconds = 0;
  double forward_flops = 0;  // Per image; its layer's, or its part of them.
};

// One training iteration of a network on one V100, mixed precision.
struct Model {
  std::string name;
  std::vector<ModelTensor> tensors;  // In forward order.
  int batch = 0;
  double backward_seconds = 0;
  double rest_seconds = 0;  // Forward and update: all but backward.
  bool measured = false;    // Or derived from the operations.

  double iteration_seconds() const { return backward_seconds + rest_seconds; }
  std::size_t elements() const;
  // Positions in `tensors`, in the order in which gradients become ready:
  // last to first where ready at the same time.
  std::vector<std::size_t> ReadyOrder() const;
};

// The names LoadModel() knows.
std::vector<std::string> ModelNames();

// Reads `name`'s tables below `data` (benchmarks/data) and scales the times
// to `batch` images. alexnet_bn and resnet50_gf were measured at 128. The
// others are derived: backward costs twice the forward operations, at the rate
// that the measured profile of the same family implies (resnet50_gf for
// ResNets, alexnet_bn else), and the rest keeps its proportion to backward.
// kInvalidArgument names the file and line.
Result<Model> LoadModel(const std::string& data, const std::string& name,
                        int batch);

}  // namespace gradientflow::benchmarks
