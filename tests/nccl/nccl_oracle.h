#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "gradientflow/collectives/collective.h"
#include "tests/kernels/oracle.h"

// What NCCL's results are checked against, in float64.
namespace gradientflow::testing {

inline constexpr DType kEveryType[] = {
    DType::kFloat32, DType::kFloat16, DType::kBFloat16, DType::kFloat64,
    DType::kInt8,    DType::kInt32,   DType::kInt64,    DType::kUInt8};
// All that NCCL has.
inline constexpr ReduceOp kEveryOp[] = {ReduceOp::kSum, ReduceOp::kMin,
                                        ReduceOp::kMax, ReduceOp::kProduct,
                                        ReduceOp::kMean};

// Rank `rank`'s elements: floats of 0.5 to 1.5 and either sign; integers of any
// bits.
kernels::testing::Elements NcclInput(DType type, int rank, std::size_t count,
                                     std::uint64_t seed);

// Whether element `at` of `seen` is what `call` makes of element `from` of the
// ranks' inputs: bit for bit for integers, within a bound for floats (in units
// of the last place, at the coarser of dtype and wire, of the magnitudes).
::testing::AssertionResult IsReduced(
    const CollectiveCall& call,
    const std::vector<kernels::testing::Elements>& inputs, std::size_t from,
    const kernels::testing::Elements& seen, std::size_t at);

std::string Describe(const CollectiveCall& call);

}  // namespace gradientflow::testing
