#include "tests/nccl/nccl_oracle.h"

#include <algorithm>
#include <cmath>
#include <random>

#include "gradientflow/base/str_cat.h"

namespace gradientflow::testing {
namespace {

using kernels::testing::Elements;
using kernels::testing::PrecisionOf;

// Each input is rounded once for its factor and once for the rounding of that
// factor, and each partial sum once; the factors of a product add their own
// errors.
constexpr double kBaseUlps = 2;
constexpr double kUlpsPerRank = 1.5;

double CombineValues(ReduceOp op, double a, double b) {
  switch (op) {
    case ReduceOp::kProduct:
      return a * b;
    case ReduceOp::kMin:
      return std::min(a, b);
    case ReduceOp::kMax:
      return std::max(a, b);
    default:
      return a + b;
  }
}

}  // namespace

Elements NcclInput(DType type, int rank, std::size_t count,
                   std::uint64_t seed) {
  std::mt19937_64 random(seed * 1000 + static_cast<std::uint64_t>(rank));
  Elements elements(type, count);
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint64_t bits = random();
    if (!IsFloat(type)) {
      const int spare = 64 - 8 * static_cast<int>(SizeOf(type));
      elements.SetBits(i, bits << spare >> spare);
      continue;
    }
    const double magnitude = 0.5 + std::ldexp(double(bits >> 12), -52);
    elements.Set(i, (bits & 1) != 0 ? -magnitude : magnitude);
  }
  return elements;
}

::testing::AssertionResult IsReduced(const CollectiveCall& call,
                                     const std::vector<Elements>& inputs,
                                     std::size_t from, const Elements& seen,
                                     std::size_t at) {
  if (!IsFloat(call.dtype)) {
    std::uint64_t total = inputs[0].Bits(from);
    for (std::size_t r = 1; r < inputs.size(); ++r) {
      total = kernels::testing::CombineBits(
          static_cast<kernels::ReduceOp>(call.op), call.dtype, total,
          inputs[r].Bits(from));
    }
    if (total == seen.Bits(at)) {
      return ::testing::AssertionSuccess();
    }
    return ::testing::AssertionFailure()
           << "element " << from << " has bits " << seen.Bits(at)
           << ", expected " << total;
  }
  double value = inputs[0].Get(from);
  double magnitude = std::fabs(value);
  for (std::size_t r = 1; r < inputs.size(); ++r) {
    value = CombineValues(call.op, value, inputs[r].Get(from));
    magnitude += std::fabs(inputs[r].Get(from));
  }
  double factor = double{call.scale};
  if (call.op == ReduceOp::kMean) factor /= double(inputs.size());
  value *= factor;
  const bool sums = call.op == ReduceOp::kSum || call.op == ReduceOp::kMean;
  magnitude = sums ? magnitude * factor : std::fabs(value);
  const int precision =
      std::min(PrecisionOf(call.dtype), PrecisionOf(call.wire));
  const double unit = std::ldexp(1.0, std::ilogb(magnitude) + 1 - precision);
  const double bound =
      unit * (kBaseUlps + kUlpsPerRank * double(inputs.size()));
  if (std::fabs(seen.Get(at) - value) <= bound) {
    return ::testing::AssertionSuccess();
  }
  return ::testing::AssertionFailure()
         << "element " << from << " is " << seen.Get(at) << ", expected "
         << value << " within " << bound;
}

std::string Describe(const CollectiveCall& call) {
  return StrCat(Name(call.kind), " of ", call.count, " ", Name(call.dtype),
                " as ", Name(call.wire), ", ", Name(call.op), ", scale ",
                call.scale, ", root ", call.root, ", ", call.extents.size(),
                " extents");
}

}  // namespace gradientflow::testing
