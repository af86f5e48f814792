#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <string>
#include <tuple>
#include <vector>

#include "gradientflow/base/str_cat.h"
#include "tests/nccl/nccl_suite.h"
#include "transports/wire.h"

// Sums of 16-bit elements over NCCL, against float64: how far off, in which
// direction, and with how many passes over the gradients.
namespace gradientflow::testing {
namespace {

using kernels::testing::Elements;

// Elements of one phase and of two, with a tail in both.
constexpr std::size_t kSmall = 101;
constexpr std::size_t kLarge = 50021;

// Values of [1, 2), which all have the same unit, as have their means.
Elements Positive(DType type, int rank, std::size_t count) {
  Elements elements = NcclInput(DType::kFloat64, rank, count, 31);
  Elements positive(type, count);
  for (std::size_t i = 0; i < count; ++i) {
    positive.Set(i, std::fabs(elements.Get(i)) + 0.5);
  }
  return positive;
}

double UnitOf(DType type) { return type == DType::kFloat16 ? 0x1p-10 : 0x1p-7; }

// Errors in units in the last place.
struct Errors {
  double most = 0;
  double sum = 0;
  std::size_t count = 0;

  void Add(double error) {
    most = std::max(most, std::fabs(error));
    sum += error;
    ++count;
  }
  double bias() const { return sum / static_cast<double>(count); }
};

double MeanOf(const std::vector<Elements>& inputs, std::size_t i) {
  double sum = 0;
  for (const Elements& input : inputs) sum += input.Get(i);
  return sum / static_cast<double>(inputs.size());
}

std::vector<Elements> PositiveInputs(int size, DType type, std::size_t count) {
  std::vector<Elements> inputs;
  for (int r = 0; r < size; ++r) inputs.push_back(Positive(type, r, count));
  return inputs;
}

// Runs the mean of positive elements, and returns its errors.
Errors ErrorsOf(NcclRank& self, CollectiveCall call) {
  const std::vector<Elements> inputs =
      PositiveInputs(self.collective.size(), call.dtype, call.count);
  const DeviceMemory memory = self.Upload(inputs[self.rank]);
  call.op = ReduceOp::kMean;
  call.output = memory.get();
  ExpectOk(self.Run(call), call);
  Elements seen(call.dtype, call.count);
  NcclRank::Download(memory, &seen);
  Errors errors;
  for (std::size_t i = 0; i < call.count; ++i) {
    errors.Add((seen.Get(i) - MeanOf(inputs, i)) / UnitOf(call.wire));
  }
  return errors;
}

class NcclSumsTest
    : public ::testing::TestWithParam<std::tuple<int, DType, DType>> {
 protected:
  void Run(const std::function<void(NcclRank&)>& body,
           gradientflow::NcclSums sums = gradientflow::NcclSums::kFloat32) {
    NcclJob job;
    job.nccl = &nccl_;
    job.size = std::get<0>(GetParam());
    job.adjust = [sums](int, NcclArgs* args) { args->sums = sums; };
    RunNcclRanks(job, body);
    EXPECT_EQ(nccl_.Get(FakeNcclCount::kMisuses), 0);
    EXPECT_EQ(nccl_.Get(FakeNcclCount::kMismatches), 0);
  }

  static CollectiveCall Mean(std::size_t count) {
    CollectiveCall call =
        Call(CollectiveKind::kAllreduce, std::get<1>(GetParam()), count);
    call.wire = std::get<2>(GetParam());
    return call;
  }

  FakeNccl nccl_;
};

TEST_P(NcclSumsTest, MeansAreWithinAUnitOfTheTruthAndUnbiased) {
  Run([](NcclRank& self) {
    for (const std::size_t count : {kSmall, kLarge}) {
      const Errors errors = ErrorsOf(self, Mean(count));
      EXPECT_LE(errors.most, 1.0);
      EXPECT_LE(std::fabs(errors.bias()), count == kLarge ? 0.01 : 0.2);
    }
  });
}

// NCCL rounds more often, but not with a factor that is the same for all.
TEST_P(NcclSumsTest, NcclsOwnMeansAreUnbiasedToo) {
  Run(
      [](NcclRank& self) {
        EXPECT_LE(std::fabs(ErrorsOf(self, Mean(kLarge)).bias()), 0.1);
      },
      gradientflow::NcclSums::kNccl);
}

TEST_P(NcclSumsTest, EveryRankHasTheSameBitsAlsoAroundGaps) {
  const std::vector<Extent> gaps = {{3, 17}, {64, 20000}, {20100, 30001}};
  std::vector<Elements> seen(static_cast<std::size_t>(std::get<0>(GetParam())),
                             Elements(std::get<1>(GetParam()), kLarge + 200));
  Run([&](NcclRank& self) {
    const std::vector<Elements> inputs = Inputs(
        self.collective.size(), std::get<1>(GetParam()), kLarge + 200, 5);
    const Elements& mine = inputs[self.rank];
    const DeviceMemory memory = self.Upload(mine);
    CollectiveCall call = Mean(0);
    call.extents = gaps;
    for (const Extent& extent : gaps) call.count += extent.count;
    call.op = ReduceOp::kMean;
    call.scale = 0.7F;
    call.output = memory.get();
    ExpectOk(self.Run(call), call);
    Elements& result = seen[self.rank];
    NcclRank::Download(memory, &result);
    std::size_t next = 0;
    for (const Extent& extent : gaps) {
      for (std::size_t i = next; i < extent.begin; ++i) {
        ASSERT_EQ(result.Bits(i), mine.Bits(i)) << i;
      }
      next = extent.begin + extent.count;
      for (std::size_t i = extent.begin; i < next; ++i) {
        ASSERT_TRUE(IsReduced(call, inputs, i, result, i));
      }
    }
  });
  for (const Extent& extent : gaps) {
    for (std::size_t i = extent.begin; i < extent.begin + extent.count; ++i) {
      for (const Elements& each : seen) {
        ASSERT_EQ(each.Bits(i), seen[0].Bits(i)) << i;
      }
    }
  }
}

// Beyond the kernels that add up: one that converts and packs and one that
// unpacks, scales and looks for infinities; none if nothing converts.
TEST_P(NcclSumsTest, APassBeforeAndOneAfterIfElementsConvert) {
  Run([](NcclRank& self) {
    const CollectiveCall call = Mean(kLarge);
    const std::uint64_t before = self.device.count(FakeCall::kLaunch);
    ErrorsOf(self, call);
    const std::uint64_t sums = 2;  // The rank's block, and the tail.
    EXPECT_EQ(self.device.count(FakeCall::kLaunch) - before,
              sums + (call.wire != call.dtype ? 2 : 0));
  });
}

TEST_P(NcclSumsTest, ANanOfAnyRankAnywhereIsToldToAll) {
  Run([](NcclRank& self) {
    const int size = self.collective.size();
    for (const std::size_t count : {kSmall, kLarge}) {
      for (const std::size_t at : {std::size_t{0}, count / 2, count - 1}) {
        CollectiveCall call = Mean(count);
        Elements mine = Positive(call.dtype, self.rank, count);
        if (self.rank == static_cast<int>(at) % size) {
          mine.Set(at, std::nan(""));
        }
        const DeviceMemory memory = self.Upload(mine);
        call.output = memory.get();
        const Outcome outcome = self.Run(call);
        ExpectOk(outcome, call);
        EXPECT_EQ(outcome.flags, kFlagNonfinite) << count << ", " << at;
      }
      EXPECT_EQ(ErrorsOf(self, Mean(count)).count, count);
    }
  });
}

std::string SumsName(
    const ::testing::TestParamInfo<std::tuple<int, DType, DType>>& info) {
  return StrCat(std::get<0>(info.param), "Ranks_",
                Name(std::get<1>(info.param)), "_as_",
                Name(std::get<2>(info.param)));
}

INSTANTIATE_TEST_SUITE_P(Fake, NcclSumsTest,
                         ::testing::Combine(::testing::Values(3, 5, 7),
                                            ::testing::Values(DType::kFloat32,
                                                              DType::kFloat16),
                                            ::testing::Values(DType::kFloat16)),
                         SumsName);
INSTANTIATE_TEST_SUITE_P(
    FakeBFloat16, NcclSumsTest,
    ::testing::Combine(::testing::Values(3, 7),
                       ::testing::Values(DType::kFloat32, DType::kBFloat16),
                       ::testing::Values(DType::kBFloat16)),
    SumsName);

TEST(NcclSumsOfBlocks, ReducesAndReduceScattersRoundOnceToo) {
  FakeNccl nccl;
  NcclJob job;
  job.nccl = &nccl;
  job.size = 5;
  RunNcclRanks(job, [](NcclRank& self) {
    for (const std::size_t count : {kSmall, kLarge}) {
      const std::vector<Elements> inputs =
          PositiveInputs(5, DType::kBFloat16, 5 * count);
      const DeviceMemory input = self.Upload(inputs[self.rank]);
      for (const bool scatters : {true, false}) {
        CollectiveCall call = Call(
            scatters ? CollectiveKind::kReduceScatter : CollectiveKind::kReduce,
            DType::kBFloat16, count, /*root=*/3);
        call.op = ReduceOp::kMean;
        Elements seen(DType::kBFloat16, count);
        const DeviceMemory output = self.Upload(seen);
        call.input = input.get();
        if (scatters || self.rank == 3) call.output = output.get();
        ExpectOk(self.Run(call), call);
        NcclRank::Download(output, &seen);
        if (!scatters && self.rank != 3) continue;
        const std::size_t from = scatters ? self.rank * count : 0;
        for (std::size_t i = 0; i < count; ++i) {
          const double mean = MeanOf(inputs, from + i);
          ASSERT_LE(std::fabs(seen.Get(i) - mean), 0.51 * 0x1p-7) << i;
        }
      }
      // What is reduced must not change.
      Elements after(DType::kBFloat16, 5 * count);
      NcclRank::Download(input, &after);
      ExpectMoved(after, 0, inputs[self.rank], 0, 5 * count);
    }
  });
  EXPECT_EQ(nccl.Get(FakeNcclCount::kMisuses), 0);
}

// A launch adds up 64 sources at most.
TEST(NcclSumsOfBlocks, MoreRanksThanALaunchTakes) {
  FakeNccl nccl;
  NcclJob job;
  job.nccl = &nccl;
  job.size = 66;
  job.lag = FakeLag::kNone;
  RunNcclRanks(job, [](NcclRank& self) {
    for (const std::size_t count : {kSmall, std::size_t{2003}}) {
      const Errors errors = ErrorsOf(
          self, Call(CollectiveKind::kAllreduce, DType::kFloat16, count));
      EXPECT_LE(errors.most, 0.51);
    }
  });
}

// Bytes of a ring, give or take the tail.
TEST(NcclSumsOfBlocks, SendsNoMoreThanARing) {
  FakeNccl nccl;
  NcclJob job;
  job.nccl = &nccl;
  job.size = 5;
  RunNcclRanks(job, [](NcclRank& self) {
    const CollectiveCall call =
        Call(CollectiveKind::kAllreduce, DType::kFloat16, kLarge);
    ErrorsOf(self, call);
    const double sent =
        static_cast<double>(self.collective.bytes_sent(0, call.channel));
    EXPECT_NEAR(sent, 2.0 * kLarge * 2 * 4 / 5, 5 * 8 * 2 * 4);
  });
}

}  // namespace
}  // namespace gradientflow::testing
