#pragma once

#include <cstddef>
#include <cstdint>

#include "gradientflow/communicator/communicator.h"
#include "tests/kernels/oracle.h"

// The oracle of allreduce: a second, slow implementation.
namespace gradientflow::testing {

struct AllreduceCase {
  DType dtype = DType::kFloat32;
  DType wire = DType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  const CollectiveAlgorithm* algorithm = nullptr;
  std::size_t count = 0;
  float scale = 1.0F;
};
std::string Describe(const AllreduceCase& c);

// Whether the library guarantees to run it.
bool Valid(const AllreduceCase& c);

// Element `i` of rank `rank`. Floats are such that a product of eight is a
// normal float16. Integers may have any bits.
std::uint64_t InputBits(DType dtype, int rank, std::size_t i);

// Rank `rank`'s elements [begin, begin + count).
kernels::testing::Elements Input(DType dtype, int rank, std::size_t count,
                                 std::size_t begin = 0);

// Runs it on `comm`. Returns a hash of the bits, which must be the same on
// all ranks. Each rank checks its share of the elements, so that together they
// check every element.
std::uint64_t RunAndCheck(Communicator& comm, const AllreduceCase& c);

std::uint64_t Digest(const kernels::testing::Elements& elements);

}  // namespace gradientflow::testing
