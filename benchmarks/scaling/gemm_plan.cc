#include "benchmarks/scaling/gemm_plan.h"

#include <algorithm>
#include <cmath>

namespace gradientflow::benchmarks {
namespace {

constexpr int kSmallestEdge = 64;
constexpr int kColumns = 8;  // n is a multiple: tensor cores' alignment.

}  // namespace

std::vector<Gemm> PlanGemms(double flops) {
  // At least a quarter as many columns as rows, where there is that much work:
  // then rounding n changes little.
  int edge = kGemmEdge;
  while (edge > kSmallestEdge && flops < 0.5 * edge * edge * edge) edge /= 2;
  const double per_column = 2.0 * edge * edge;
  auto columns = static_cast<long long>(
      std::llround(flops / per_column / kColumns) * kColumns);
  std::vector<Gemm> gemms;
  while (columns > 0) {
    const auto n = static_cast<int>(std::min<long long>(columns, kGemmColumns));
    gemms.push_back(Gemm{edge, n, edge});
    columns -= n;
  }
  return gemms;
}

}  // namespace gradientflow::benchmarks
