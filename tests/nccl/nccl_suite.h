#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <tuple>
#include <vector>

#include "tests/nccl/nccl_oracle.h"
#include "tests/nccl/nccl_ranks.h"

// What the tests of collectives share: numbers of ranks, with and without calls
// for which NCCL takes its time.
namespace gradientflow::testing {

inline constexpr std::size_t kCounts[] = {0, 1, 7, 97, 1009};

class NcclCollectives : public ::testing::TestWithParam<std::tuple<int, int>> {
 protected:
  void Run(const std::function<void(NcclRank&)>& body) {
    nccl_.Set(FakeNcclMode::kBusyPolls, std::get<1>(GetParam()));
    NcclJob job;
    job.nccl = &nccl_;
    job.size = std::get<0>(GetParam());
    RunNcclRanks(job, body);
    EXPECT_EQ(nccl_.Get(FakeNcclCount::kMisuses), 0);
    EXPECT_EQ(nccl_.Get(FakeNcclCount::kBegun), kChannels * job.size);
    EXPECT_EQ(nccl_.Get(FakeNcclCount::kDestroyed), kChannels * job.size);
    EXPECT_EQ(nccl_.Get(FakeNcclCount::kAborted), 0);
    EXPECT_EQ(nccl_.Get(FakeNcclCount::kOperatorsDestroyed),
              nccl_.Get(FakeNcclCount::kOperators));
  }

  FakeNccl nccl_;
};

inline CollectiveCall Call(CollectiveKind kind, DType type, std::size_t count,
                           int root = 0) {
  CollectiveCall call;
  call.kind = kind;
  call.count = count;
  call.dtype = call.wire = type;
  call.root = root;
  return call;
}

inline std::vector<kernels::testing::Elements> Inputs(int size, DType type,
                                                      std::size_t count,
                                                      std::uint64_t seed) {
  std::vector<kernels::testing::Elements> inputs;
  for (int r = 0; r < size; ++r) {
    inputs.push_back(NcclInput(type, r, count, seed));
  }
  return inputs;
}

// Elements [at, at + n) of `seen` are [from, from + n) of `input`.
inline void ExpectMoved(const kernels::testing::Elements& seen, std::size_t at,
                        const kernels::testing::Elements& input,
                        std::size_t from, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) {
    ASSERT_EQ(seen.Bits(at + i), input.Bits(from + i)) << "element " << at + i;
  }
}

inline void ExpectOk(const Outcome& outcome, const CollectiveCall& call) {
  ASSERT_TRUE(outcome.status.ok())
      << Describe(call) << ": " << outcome.status.ToString();
}

inline std::string ParamName(
    const ::testing::TestParamInfo<std::tuple<int, int>>& info) {
  return std::to_string(std::get<0>(info.param)) + "Ranks" +
         (std::get<1>(info.param) == 0 ? "" : "SlowNccl");
}

// The jobs over which a suite runs that is NcclCollectives or derived from it.
// Each suite runs over them once per program.
#define GRADIENTFLOW_FOR_NCCL_RANKS(suite)                                   \
  INSTANTIATE_TEST_SUITE_P(Fake, suite,                                      \
                           ::testing::Combine(::testing::Values(1, 2, 3, 5), \
                                              ::testing::Values(0, 3)),      \
                           ParamName)

}  // namespace gradientflow::testing
