#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "gradientflow/collectives/collective.h"
#include "tests/kernels/oracle.h"

// The oracle for NCCL's results, in float64.
namespace gradientflow::testing {

inline constexpr DType kEveryType[] = {
    DType::kFloat32, DType::kFloat16, DType::kBFloat16, DType::kFloat64,
    DType::kInt8,    DType::kInt32,   DType::kInt64,    DType::kUInt8};
// All operations of NCCL.
inline constexpr ReduceOp kEveryOp[] = {ReduceOp::kSum, ReduceOp::kMin,
                                        ReduceOp::kMax, ReduceOp::kProduct,
                                        ReduceOp::kMean};

// The elements of rank `rank`: floats of 0.5 to 1.5 with either sign; integers
// with any bits.
kernels::testing::Elements NcclInput(DType type, int rank, std::size_t count,
                                     std::uint64_t seed);

// Whether element `at` of `seen` is the result of `call` for element `from` of
// the ranks' inputs: bit for bit for integers, within a bound for floats (in
// units in the last place, at the coarser of dtype and wire, of the
// magnitudes).
::testing::AssertionResult IsReduced(
    const CollectiveCall& call,
    const std::vector<kernels::testing::Elements>& inputs, std::size_t from,
    const kernels::testing::Elements& seen, std::size_t at);

std::string Describe(const CollectiveCall& call);

}  // namespace gradientflow::testing
