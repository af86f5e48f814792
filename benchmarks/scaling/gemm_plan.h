#pragma once

#include <vector>

namespace gradientflow::benchmarks {

// C = A B, where A is m x k and B is k x n.
struct Gemm {
  int m = 0;
  int n = 0;
  int k = 0;

  double flops() const { return 2.0 * m * n * k; }  // A multiply-add is two.
};

// No matrix of a plan has more elements.
inline constexpr int kGemmEdge = 2048;
inline constexpr int kGemmColumns = 8192;
inline constexpr int kMaxGemmElements = kGemmEdge * kGemmColumns;

// Products that come to `flops` operations, to within the eight columns that
// tensor cores work on: of shapes at which a GPU is near its peak, as far as
// there is work for that. Nothing where there is next to no work.
std::vector<Gemm> PlanGemms(double flops);

}  // namespace gradientflow::benchmarks
