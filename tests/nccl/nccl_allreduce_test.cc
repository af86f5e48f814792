#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "tests/nccl/nccl_suite.h"
#include "transports/wire.h"

// Allreduce over NCCL, compared with float64: types, operations, scales,
// conversion, extents, and non-finite values.
namespace gradientflow::testing {
namespace {

using kernels::testing::Elements;

class NcclAllreduce : public NcclCollectives {};

// Runs an allreduce of rank-dependent elements, checks all elements (including
// those outside of the call), and returns the flags.
std::uint32_t CheckAllreduce(NcclRank& self, CollectiveCall call,
                             std::size_t buffer) {
  const std::vector<Elements> inputs =
      Inputs(self.collective.size(), call.dtype, buffer, 3);
  const Elements& mine = inputs[static_cast<std::size_t>(self.rank)];
  const DeviceMemory memory = self.Upload(mine);
  call.output = memory.get();
  const Outcome outcome = self.Run(call);
  EXPECT_TRUE(outcome.status.ok())
      << Describe(call) << ": " << outcome.status.ToString();
  Elements seen(call.dtype, buffer);
  NcclRank::Download(memory, &seen);
  std::vector<Extent> extents = call.extents;
  if (extents.empty()) extents = {{0, call.count}};
  std::vector<bool> part(buffer, false);
  for (const Extent& extent : extents) {
    for (std::size_t i = 0; i < extent.count; ++i) {
      part[extent.begin + i] = true;
    }
  }
  for (std::size_t i = 0; i < buffer; ++i) {
    if (part[i]) {
      EXPECT_TRUE(IsReduced(call, inputs, i, seen, i)) << Describe(call);
    } else {
      EXPECT_EQ(seen.Bits(i), mine.Bits(i)) << Describe(call) << ", " << i;
    }
    if (::testing::Test::HasFailure()) break;
  }
  return outcome.flags;
}

TEST_P(NcclAllreduce, OfEveryTypeOperationAndScale) {
  Run([](NcclRank& self) {
    for (const DType type : kEveryType) {
      for (const ReduceOp op : kEveryOp) {
        for (const float scale : {1.0F, 0.25F, 0.7F}) {
          if (!IsFloat(type) && (op == ReduceOp::kMean || scale != 1.0F)) {
            continue;
          }
          for (const std::size_t count : kCounts) {
            CollectiveCall call = Call(CollectiveKind::kAllreduce, type, count);
            call.op = op;
            call.scale = scale;
            EXPECT_EQ(CheckAllreduce(self, call, count), 0U);
            if (::testing::Test::HasFailure()) return;
          }
        }
      }
    }
  });
}

TEST_P(NcclAllreduce, ConvertsBetweenGradientTypes) {
  Run([](NcclRank& self) {
    for (const DType type : kernels::testing::kGradientTypes) {
      for (const DType wire : kernels::testing::kGradientTypes) {
        for (const ReduceOp op : kEveryOp) {
          CollectiveCall call = Call(CollectiveKind::kAllreduce, type, 331);
          call.wire = wire;
          call.op = op;
          call.scale = op == ReduceOp::kMax ? 1.0F : 0.7F;
          EXPECT_EQ(CheckAllreduce(self, call, call.count), 0U);
        }
      }
    }
  });
}

TEST_P(NcclAllreduce, LeavesWhatLiesBetweenExtentsAlone) {
  const std::vector<std::vector<Extent>> cases = {
      {{3, 50}}, {{0, 1}, {2, 7}, {100, 400}}, {{5, 17}, {22, 80}}};
  Run([&](NcclRank& self) {
    for (const auto& extents : cases) {
      for (const DType type : kEveryType) {
        CollectiveCall call = Call(CollectiveKind::kAllreduce, type, 0);
        for (const Extent& extent : extents) call.count += extent.count;
        call.extents = extents;
        if (IsFloat(type)) call.op = ReduceOp::kMean;
        if (IsFloat(type)) call.scale = 0.7F;
        EXPECT_EQ(CheckAllreduce(self, call, 512), 0U);
        if (!IsGradientType(type)) continue;
        call.wire = DType::kFloat16;
        EXPECT_EQ(CheckAllreduce(self, call, 512), 0U);
      }
    }
  });
}

// All ranks learn of an inf or NaN of one rank, or one that the sum makes.
TEST_P(NcclAllreduce, TellsEveryRankOfInfAndNan) {
  Run([](NcclRank& self) {
    const double bads[] = {std::nan(""), HUGE_VAL, -HUGE_VAL, 60000.0};
    int round = 0;
    for (const DType type : {DType::kFloat32, DType::kFloat16, DType::kBFloat16,
                             DType::kFloat64}) {
      for (const double bad : bads) {
        for (const bool convert : {false, true}) {
          for (const float scale : {1.0F, 0.5F}) {
            CollectiveCall call = Call(CollectiveKind::kAllreduce, type, 129);
            if (convert && !IsGradientType(type)) continue;
            if (convert) call.wire = DType::kFloat16;
            call.scale = scale;
            Elements mine = NcclInput(type, self.rank, call.count, 5);
            // Large for a float16, and too large in a sum.
            const bool all = bad == 60000.0;
            const bool here = self.rank == ++round % self.collective.size();
            if (here || all) mine.Set(call.count - 1, bad);
            const DeviceMemory memory = self.Upload(mine);
            call.output = memory.get();
            const Outcome outcome = self.Run(call);
            ExpectOk(outcome, call);
            const bool halves =
                call.wire == DType::kFloat16 && self.collective.size() > 1;
            EXPECT_EQ(outcome.flags,
                      !all || halves ? kFlagNonfinite : std::uint32_t{0})
                << Describe(call) << ", " << bad;
          }
        }
      }
    }
  });
}

GRADIENTFLOW_FOR_NCCL_RANKS(NcclAllreduce);

}  // namespace
}  // namespace gradientflow::testing
