#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "tests/communicator/allreduce_oracle.h"
#include "tests/communicator/ranks.h"

// Every allreduce, over every fabric that can run it, against an oracle in
// float64 (or wrapping integers).
namespace gradientflow::testing {
namespace {

using Algorithm = const CollectiveAlgorithm*;
using kernels::testing::Elements;

constexpr std::size_t kSegmentBytes = 16384;
constexpr std::size_t kSegment = kSegmentBytes / sizeof(float);
constexpr std::size_t kCounts[] = {
    0, 1, 2, 7, 97, 1000, kSegment - 1, kSegment + 1, 2 * kSegment + 3};
constexpr DType kAllTypes[] = {
    DType::kFloat32, DType::kFloat16, DType::kBFloat16, DType::kFloat64,
    DType::kInt8,    DType::kInt32,   DType::kInt64,    DType::kUInt8};
constexpr DType kGradientTypes[] = {DType::kFloat32, DType::kFloat16,
                                    DType::kBFloat16};
constexpr ReduceOp kAllOps[] = {
    ReduceOp::kSum,  ReduceOp::kMin,    ReduceOp::kMax,   ReduceOp::kProduct,
    ReduceOp::kMean, ReduceOp::kBitAnd, ReduceOp::kBitOr, ReduceOp::kBitXor};

std::vector<float> Normal(int rank, std::size_t count) {
  std::mt19937 random(static_cast<unsigned>(rank));
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

std::vector<Algorithm> AlgorithmsOver(Over over) {
  std::vector<Algorithm> algorithms = {nullptr};
  for (Algorithm algorithm : allreduce::kTable) {
    if (RunnableAlgorithm(algorithm, 8, over == Over::kMemory,
                          over == Over::kPlaces || over == Over::kRdma) ==
        algorithm) {
      algorithms.push_back(algorithm);
    }
  }
  return algorithms;
}

class Allreduce : public ::testing::TestWithParam<std::tuple<Over, int>> {
 protected:
  CommJob MakeJob() const {
    CommJob job;
    std::tie(job.over, job.size) = GetParam();
    job.options.segment_bytes = kSegmentBytes;
    job.options.segments_in_flight = 3;
    return job;
  }

  // Runs all `cases` on all ranks of one job; all must get the same bits.
  // Returns a hash of the bits of each case.
  std::vector<std::uint64_t> Agree(
      const std::vector<AllreduceCase>& cases) const {
    const CommJob job = MakeJob();
    std::vector<std::vector<std::uint64_t>> digests(
        static_cast<std::size_t>(job.size));
    RunRanks(job, [&](Communicator& comm) {
      auto& mine = digests[static_cast<std::size_t>(comm.rank())];
      for (const AllreduceCase& c : cases) {
        mine.push_back(RunAndCheck(comm, c));
        if (::testing::Test::HasFailure()) return;
      }
    });
    for (std::size_t r = 1; r < digests.size() && !HasFailure(); ++r) {
      for (std::size_t i = 0; i < cases.size(); ++i) {
        EXPECT_EQ(digests[r][i], digests[0][i])
            << "ranks 0 and " << r << " differ: " << Describe(cases[i]);
      }
    }
    return digests[0];
  }
};

TEST_P(Allreduce, OfEverySizeByEveryAlgorithm) {
  std::vector<AllreduceCase> cases;
  for (Algorithm algorithm : AlgorithmsOver(std::get<Over>(GetParam()))) {
    for (std::size_t count : kCounts) {
      cases.push_back({DType::kFloat32, DType::kFloat32, ReduceOp::kMean,
                       algorithm, count});
      cases.push_back({DType::kFloat32, DType::kFloat16, ReduceOp::kMean,
                       algorithm, count});
      cases.push_back(
          {DType::kInt32, DType::kInt32, ReduceOp::kSum, algorithm, count});
    }
  }
  Agree(cases);
}

TEST_P(Allreduce, OfEveryTypeWithEveryOperation) {
  const std::vector<Algorithm> algorithms =
      AlgorithmsOver(std::get<Over>(GetParam()));
  std::vector<AllreduceCase> cases;
  for (DType dtype : kAllTypes) {
    for (ReduceOp op : kAllOps) {
      for (std::size_t count : {std::size_t{97}, std::size_t{1031}}) {
        const Algorithm algorithm =
            algorithms[cases.size() % algorithms.size()];
        const AllreduceCase c = {dtype, dtype, op, algorithm, count};
        if (Valid(c)) cases.push_back(c);
      }
    }
  }
  Agree(cases);
}

// Odd counts, some of which need a second segment.
TEST_P(Allreduce, OfIntegersWithEveryOperationByEveryAlgorithm) {
  std::vector<AllreduceCase> cases;
  for (Algorithm algorithm : AlgorithmsOver(std::get<Over>(GetParam()))) {
    for (DType dtype : kernels::testing::kIntegerTypes) {
      for (ReduceOp op : kAllOps) {
        const std::size_t count =
            cases.size() % 5 == 0 ? kSegmentBytes / SizeOf(dtype) + 5 : 77;
        const AllreduceCase c = {dtype, dtype, op, algorithm, count};
        if (Valid(c)) cases.push_back(c);
      }
    }
  }
  Agree(cases);
}

TEST_P(Allreduce, WithEveryWireAndScale) {
  std::vector<AllreduceCase> cases;
  for (Algorithm algorithm : AlgorithmsOver(std::get<Over>(GetParam()))) {
    for (DType dtype : kGradientTypes) {
      for (DType wire : kGradientTypes) {
        cases.push_back({dtype, wire, ReduceOp::kMean, algorithm, 531, 0.25F});
        cases.push_back({dtype, wire, ReduceOp::kMax, algorithm, 131});
      }
    }
  }
  Agree(cases);
}

TEST_P(Allreduce, GivesTheSameBitsWhenRunAgain) {
  constexpr std::size_t kTimes = 4;
  std::vector<AllreduceCase> cases;
  for (Algorithm algorithm : AlgorithmsOver(std::get<Over>(GetParam()))) {
    for (DType wire : {DType::kFloat32, DType::kBFloat16}) {
      cases.insert(cases.end(), kTimes,
                   {DType::kFloat32, wire, ReduceOp::kMean, algorithm,
                    2 * kSegment + 11});
    }
  }
  const std::vector<std::uint64_t> digests = Agree(cases);
  for (std::size_t i = 0; i < digests.size(); ++i) {
    EXPECT_EQ(digests[i], digests[i - i % kTimes]) << Describe(cases[i]);
  }
}

// A rank that finds its peers ahead may do several parts without checking those
// that it waited for before: they must not reuse their sync slots meanwhile.
TEST(SharedAllreduce, OfManyMorePartsThanThereAreSyncSlots) {
  constexpr std::size_t kParts = 2500;
  constexpr std::size_t kCount = kParts * kSegment + 5;
  constexpr int kRounds = 4;
  std::minstd_rand numbers;
  std::vector<std::int32_t> own(kCount + kRounds);
  for (std::int32_t& number : own) {
    number = static_cast<std::int32_t>(numbers() % 1000);
  }
  for (const int size : {2, 3}) {
    CommJob job;
    job.size = size;
    job.options.segment_bytes = kSegmentBytes;
    job.options.segments_in_flight = 8;
    RunRanks(job, [&](Communicator& comm) {
      const Result<BufferView> memory =
          comm.AllocateShared(kCount * sizeof(std::int32_t));
      ASSERT_TRUE(memory.ok()) << memory.status().ToString();
      auto* data = reinterpret_cast<std::int32_t*>(memory.value().data);
      CollectiveCall call;
      call.output = data;
      call.count = kCount;
      call.dtype = call.wire = DType::kInt32;
      call.op = ReduceOp::kSum;
      call.algorithm = &allreduce::kShared;
      for (int round = 0; round < kRounds; ++round) {
        const std::int32_t* const mine = own.data() + round;
        for (std::size_t i = 0; i < kCount; ++i) {
          data[i] = mine[i] + comm.rank();
        }
        const Status status = comm.Run(call);
        ASSERT_TRUE(status.ok()) << status.ToString();
        const std::int32_t ranks = size * (size - 1) / 2;
        for (std::size_t i = 0; i < kCount; ++i) {
          // An assertion for each would take longer than all else here.
          if (data[i] == size * mine[i] + ranks) continue;
          FAIL() << "element " << i << " is " << data[i] << ", expected "
                 << size * mine[i] + ranks;
        }
      }
      comm.FreeShared(memory.value());
    });
  }
}

// The sum of eight ranks would overflow float16: the mean must not.
TEST_P(Allreduce, MeanOfLargeFloat16DoesNotOverflow) {
  const CommJob job = MakeJob();
  RunRanks(job, [&](Communicator& comm) {
    for (Algorithm algorithm : AlgorithmsOver(job.over)) {
      for (DType dtype : {DType::kFloat16, DType::kFloat32}) {
        constexpr std::size_t kCount = 301;
        Elements data(dtype, kCount);
        for (std::size_t i = 0; i < kCount; ++i) {
          data.Set(i, 60000.0 + 32.0 * comm.rank());
        }
        CollectiveCall call;
        call.output = data.data();
        call.count = kCount;
        call.dtype = dtype;
        call.wire = DType::kFloat16;
        call.op = ReduceOp::kMean;
        call.algorithm = algorithm;
        ASSERT_TRUE(comm.Run(call).ok());
        const double exact = 60000.0 + 16.0 * (comm.size() - 1);
        for (std::size_t i = 0; i < kCount; ++i) {
          // float16 is 32 apart here; one rounding per hop.
          ASSERT_NEAR(data.Get(i), exact, 16.0 * (comm.size() + 1))
              << Name(algorithm) << " " << Name(dtype) << " element " << i;
        }
      }
    }
  });
}

// The bits are the same as if the call names the algorithm, for the group of
// all ranks and for another one.
TEST_P(Allreduce, RunsByTheSettingsAlgorithmUnlessItNamesOne) {
  for (Algorithm algorithm : AlgorithmsOver(std::get<Over>(GetParam()))) {
    if (algorithm == nullptr) continue;
    CommJob job = MakeJob();
    job.options.algorithm = Name(algorithm);
    RunRanks(job, [&](Communicator& comm) {
      std::vector<int> all;
      for (int r = 0; r < comm.size(); ++r) all.push_back(r);
      ASSERT_TRUE(comm.OpenGroup(1, all).ok());
      const std::vector<float> mine = Normal(comm.rank(), kSegment + 7);
      const auto sum = [&](GroupId group, Algorithm named) {
        std::vector<float> data = mine;
        CollectiveCall call;
        call.output = data.data();
        call.count = data.size();
        call.group = group;
        call.algorithm = named;
        EXPECT_TRUE(comm.Run(call).ok());
        return data;
      };
      EXPECT_TRUE(sum(0, nullptr) == sum(0, algorithm)) << Name(algorithm);
      // A group of some ranks shares no memory.
      const Algorithm there =
          RunnableAlgorithm(algorithm, comm.size(), /*all_share=*/false);
      EXPECT_TRUE(sum(1, nullptr) == sum(1, there)) << Name(algorithm);
    });
  }
}

INSTANTIATE_TEST_SUITE_P(
    InProcess, Allreduce,
    ::testing::Combine(::testing::Values(Over::kMemory, Over::kMessages,
                                         Over::kPlaces),
                       ::testing::Values(1, 2, 3, 4, 5, 7, 8)),
    ParamName);
INSTANTIATE_TEST_SUITE_P(
    Joined, Allreduce,
    ::testing::Combine(::testing::Values(Over::kTcp, Over::kMixed, Over::kRdma),
                       ::testing::Values(2, 3, 5)),
    ParamName);
INSTANTIATE_TEST_SUITE_P(WhenNeeded, Allreduce,
                         ::testing::Combine(::testing::Values(Over::kNeeded),
                                            ::testing::Values(3, 6, 8)),
                         ParamName);

}  // namespace
}  // namespace gradientflow::testing
