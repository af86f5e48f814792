#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "gradientflow/base/status.h"
#include "gradientflow/planner/call_prices.h"
#include "gradientflow/planner/workload.h"

// The measurements of "GradientFlow" (arXiv 1902.06855), as benchmarks/data has
// them.
namespace gradientflow::planner {

// How a cell exchanged gradients: figures 14, 16, 19 without and with overlap,
// and figure 11.
enum class PaperSetup {
  kPerTensor,
  kPerTensorOverlap,
  kLazy,
  kLazyOverlap,
  kCsc,
  kCscOverlap,
  kFloat32,  // Per tensor, without overlap, with four bytes per element.
};
// The first six; kFloat32 takes part in no fit.
inline constexpr int kPaperSetups = 6;
const char* Name(PaperSetup setup);

// One point of a curve.
struct PaperCell {
  std::string network;  // "alexnet" or "resnet50".
  char cluster = 'V';   // 'V' or 'P'.
  int ranks = 0;
  PaperSetup setup = PaperSetup::kPerTensor;
  double images_per_second = 0;

  std::string Label() const;
};

struct PaperData {
  // What one GPU does, by network and cluster, in mixed precision; and on
  // cluster V in float32.
  std::map<std::pair<std::string, char>, Workload> mixed;
  std::map<std::string, Workload> float32;
  std::vector<PaperCell> cells;
  // Figure 8, cluster P: what an allreduce took, by ranks.
  std::map<int, std::vector<CallPrices::Point>> allreduces;
};

// Reads the files in `folder`, the repository's benchmarks/data.
Result<PaperData> ReadPaperData(const std::string& folder);

}  // namespace gradientflow::planner
