#include "benchmarks/scaling/oracle.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <random>

#include "gradientflow/base/str_cat.h"

namespace gradientflow::benchmarks {
namespace {

constexpr std::size_t kSamples = 2000;
constexpr std::uint64_t kHashPrime = 0x100000001b3;

// Unit roundoff: half of the distance from 1 to the next number.
double Roundoff(DType dtype) {
  return dtype == DType::kFloat16 ? 0x1p-11 : 0x1p-24;
}

}  // namespace

Oracle::Oracle(const Gradients& gradients, const Pool& pool)
    : gradients_(gradients), pool_(pool) {
  std::mt19937_64 random(pool.elements);
  const std::size_t last = pool.elements - 1;
  elements_ = {0, last};
  for (std::size_t i = 2; i < std::min(kSamples, pool.elements); ++i) {
    elements_.push_back(random() % pool.elements);
  }
  residuals_.resize(elements_.size() * static_cast<std::size_t>(pool.ranks));
  left_.resize(residuals_.size());
}

Status Oracle::Check(std::uint64_t step, ConstBufferView pool,
                     const std::vector<std::uint8_t>& selection) {
  const double roundoff = Roundoff(pool_.dtype);
  double* residual = residuals_.data();
  double* left = left_.data();
  for (const std::size_t element : elements_) {
    double mean = 0;
    double magnitude = 0;
    double uncertain = 0;
    const bool sent =
        selection.empty() || selection[element / pool_.chunk_elements] != 0;
    for (int rank = 0; rank < pool_.ranks; ++rank, ++residual, ++left) {
      const double g = gradients_.Value(rank, step, element) + *residual;
      const double rounding = roundoff * (std::fabs(g) + *left);
      if (pool_.accumulate) *left += rounding;  // Of this sum.
      mean += g / pool_.ranks;
      magnitude += std::fabs(g) / pool_.ranks;
      uncertain += *left / pool_.ranks;
      *residual = sent ? 0 : pool_.momentum * g;
      *left = sent ? rounding : pool_.momentum * *left;
      if (pool_.accumulate) *left = sent ? 0 : *left + rounding;
    }
    if (!sent) continue;
    const float seen = ElementAt(pool, pool_.dtype, element);
    // A contribution is rounded when the residual is added and at most once per
    // hop, and a result once more.
    const double bound =
        (pool_.ranks + 2) * roundoff * (magnitude + uncertain) + uncertain +
        1e-7;
    if (!(std::fabs(seen - mean) <= bound)) {
      return Status(StatusCode::kDataLoss,
                    StrCat("step ", step, ": element ", element, ": expected ",
                           mean, " +- ", bound, ", got ", seen));
    }
    hash_ = (hash_ ^ std::bit_cast<std::uint32_t>(seen)) * kHashPrime;
  }
  return Status();
}

}  // namespace gradientflow::benchmarks
