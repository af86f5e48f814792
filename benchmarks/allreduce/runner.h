#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "benchmarks/allreduce/group.h"
#include "benchmarks/allreduce/report.h"
#include "benchmarks/allreduce/workers.h"

namespace gradientflow::benchmarks {

struct RunSettings {
  GroupSettings group;  // folder and most_bytes are filled in.
  std::vector<std::size_t> sizes;
  std::vector<const AllreduceAlgorithm*> algorithms;
  DType dtype = DType::kFloat32;
  DType wire = DType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  int iterations = 0;  // 0: by size.
  int warmup = -1;     // -1: by iterations.
  int rounds = 5;
  bool bound = false;
  bool gloo = false;
  bool openmpi = false;
};

// Names of what every row is compared with, in order.
std::vector<std::string> ComparisonNames(const RunSettings& settings);

// For every size and algorithm: checks everybody's result, then runs rounds in
// which all are timed one after the other, and hands over the row. kDataLoss
// if a result is wrong, after its row.
Status RunAllreduces(RunSettings settings,
                     const std::function<void(const Row&)>& on_row);

}  // namespace gradientflow::benchmarks
