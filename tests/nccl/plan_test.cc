#include "gradientflow/nccl/plan.h"

#include <gtest/gtest.h>

namespace gradientflow {
namespace {

CollectiveCall Allreduce(DType type, ReduceOp op, float scale) {
  CollectiveCall call;
  call.count = 12;
  call.dtype = call.wire = type;
  call.op = op;
  call.scale = scale;
  return call;
}

std::uint64_t Sent(const CollectiveCall& call, int rank, int size,
                   NcclSums sums = NcclSums::kNccl) {
  return SentBytes(call, PlanNcclCall(call, size, sums), rank, size);
}

TEST(PlanNcclCall, PlainMeanIsNcclsOwn) {
  const NcclPlan plan =
      PlanNcclCall(Allreduce(DType::kFloat32, ReduceOp::kMean, 1.0F), 4);
  EXPECT_FALSE(plan.staged);
  EXPECT_EQ(plan.op, nccl::RedOp::kAvg);
  EXPECT_EQ(plan.premul, 1.0);
  EXPECT_EQ(plan.after, AfterPass::kLook);
}

TEST(PlanNcclCall, WideSumsTakeTheirScaleBeforehand) {
  for (const DType type : {DType::kFloat32, DType::kFloat64}) {
    const NcclPlan plan =
        PlanNcclCall(Allreduce(type, ReduceOp::kMean, 0.5F), 4);
    EXPECT_EQ(plan.premul, 0.125);
    EXPECT_EQ(plan.after_scale, 1.0F);
  }
}

// A factor in half precision would lose digits, or vanish.
TEST(PlanNcclCall, HalvesAndOtherOperationsTakeTheirScaleAfterwards) {
  for (const auto& [type, op] : {std::pair(DType::kFloat16, ReduceOp::kMean),
                                 std::pair(DType::kBFloat16, ReduceOp::kSum),
                                 std::pair(DType::kFloat32, ReduceOp::kMax)}) {
    const NcclPlan plan =
        PlanNcclCall(Allreduce(type, op, 0x1p-16F), 4, NcclSums::kNccl);
    EXPECT_EQ(plan.premul, 1.0);
    EXPECT_EQ(plan.after, AfterPass::kScale);
    EXPECT_EQ(plan.after_scale, 0x1p-16F);
    EXPECT_TRUE(plan.look);
  }
}

// Neither a sum beyond the wire's range nor a scale below it loses anything.
TEST(PlanNcclCall, ConversionDividesOnTheWayInAndScalesOnTheWayOut) {
  CollectiveCall call = Allreduce(DType::kFloat32, ReduceOp::kMean, 0x1p-16F);
  call.wire = DType::kFloat16;
  const NcclPlan plan = PlanNcclCall(call, 4, NcclSums::kNccl);
  EXPECT_TRUE(plan.staged);
  EXPECT_EQ(plan.type, DType::kFloat16);
  EXPECT_EQ(plan.op, nccl::RedOp::kSum);
  EXPECT_EQ(plan.pack_scale, 0.25F);
  EXPECT_EQ(plan.after, AfterPass::kUnpack);
  EXPECT_EQ(plan.after_scale, 0x1p-16F);
}

// Values in 16 bits stay scaled; float32 applies this with the rest of the
// scale.
TEST(PlanNcclCall, LossScalesAreUndoneInFloat32Only) {
  for (const DType wire : {DType::kFloat32, DType::kFloat16}) {
    CollectiveCall call = Allreduce(DType::kFloat32, ReduceOp::kMean, 0.5F);
    call.wire = wire;
    call.unscale = 0x1p-16F;
    const NcclPlan plan = PlanNcclCall(call, 4);
    EXPECT_EQ(plan.premul * double{plan.sum_scale} * double{plan.after_scale},
              0x1p-19);
    EXPECT_EQ(plan.after_scale, wire == DType::kFloat32 ? 1.0F : 0x1p-17F);
    call.keep_scaled = true;
    EXPECT_EQ(PlanNcclCall(call, 4).after_scale,
              wire == DType::kFloat32 ? 1.0F : 0.5F);
  }
  CollectiveCall call = Allreduce(DType::kFloat16, ReduceOp::kMean, 1.0F);
  call.unscale = 0x1p-16F;
  EXPECT_EQ(PlanNcclCall(call, 4, NcclSums::kNccl).after, AfterPass::kLook);
  EXPECT_EQ(PlanNcclCall(call, 4).sum_scale, 0.25F);
}

// 1/3 in 16 bits would be off by the same for all elements.
TEST(PlanNcclCall, NcclsNarrowMeansAreDividedByAPowerOfTwoFirst) {
  CollectiveCall call = Allreduce(DType::kBFloat16, ReduceOp::kMean, 0.5F);
  const NcclPlan plain = PlanNcclCall(call, 3, NcclSums::kNccl);
  EXPECT_EQ(plain.op, nccl::RedOp::kSum);
  EXPECT_EQ(plain.premul, 0.25);
  EXPECT_EQ(plain.after, AfterPass::kScale);
  EXPECT_FLOAT_EQ(plain.after_scale, 0.5F * 4 / 3);
  call.dtype = DType::kFloat32;
  const NcclPlan staged = PlanNcclCall(call, 3, NcclSums::kNccl);
  EXPECT_EQ(staged.op, nccl::RedOp::kSum);
  EXPECT_EQ(staged.pack_scale, 0.25F);
  EXPECT_FLOAT_EQ(staged.after_scale, 0.5F * 4 / 3);
}

TEST(PlanNcclCall, NarrowSumsOfMoreThanTwoRanksAreOurOwn) {
  for (const auto& [dtype, wire] :
       {std::pair(DType::kFloat32, DType::kFloat16),
        std::pair(DType::kBFloat16, DType::kBFloat16),
        std::pair(DType::kBFloat16, DType::kFloat16)}) {
    CollectiveCall call = Allreduce(dtype, ReduceOp::kMean, 0.5F);
    call.wire = wire;
    EXPECT_FALSE(PlanNcclCall(call, 2).exchange);
    const NcclPlan plan = PlanNcclCall(call, 5);
    EXPECT_TRUE(plan.exchange);
    EXPECT_EQ(plan.look_at_sums, dtype == wire);
    EXPECT_FLOAT_EQ(plan.sum_scale * plan.after_scale, 0.1F);
    EXPECT_EQ(plan.after,
              dtype == wire ? AfterPass::kNone : AfterPass::kUnpack);
    call.op = ReduceOp::kMax;
    EXPECT_FALSE(PlanNcclCall(call, 5).exchange);
  }
  CollectiveCall wide = Allreduce(DType::kBFloat16, ReduceOp::kSum, 1.0F);
  wide.wire = DType::kFloat32;
  EXPECT_FALSE(PlanNcclCall(wide, 5).exchange);
}

TEST(PlanNcclCall, LargeSumsHaveTwoPhasesOfAlignedBlocks) {
  CollectiveCall call = Allreduce(DType::kFloat16, ReduceOp::kSum, 1.0F);
  EXPECT_EQ(PlanNcclCall(call, 5).block, 0U);
  call.count = 100001;
  EXPECT_EQ(PlanNcclCall(call, 5).block, 20000U);
  call.count = 100042;
  EXPECT_EQ(PlanNcclCall(call, 5).block, 20008U);
  // 20008 to each of four others, twice, and the tail of 2.
  EXPECT_EQ(Sent(call, 0, 5, NcclSums::kFloat32), (2 * 20008U + 2) * 4 * 2);
}

TEST(PlanNcclCall, OnlyGapsArePacked) {
  CollectiveCall call = Allreduce(DType::kInt32, ReduceOp::kSum, 1.0F);
  call.extents = {{5, 12}};
  EXPECT_FALSE(PlanNcclCall(call, 4).staged);
  EXPECT_EQ(PlanNcclCall(call, 4).after, AfterPass::kNone);
  call.extents = {{5, 6}, {20, 6}};
  EXPECT_TRUE(PlanNcclCall(call, 4).staged);
}

TEST(PlanNcclCall, OnlyAllreducesLookForInfAndNan) {
  CollectiveCall call = Allreduce(DType::kFloat32, ReduceOp::kSum, 1.0F);
  for (const CollectiveKind kind :
       {CollectiveKind::kReduce, CollectiveKind::kReduceScatter,
        CollectiveKind::kBroadcast}) {
    call.kind = kind;
    EXPECT_FALSE(PlanNcclCall(call, 4).look);
    EXPECT_EQ(PlanNcclCall(call, 4).after, AfterPass::kNone);
  }
}

TEST(SentBytes, AreThoseOfARing) {
  CollectiveCall call = Allreduce(DType::kFloat32, ReduceOp::kSum, 1.0F);
  EXPECT_EQ(Sent(call, 0, 4), 72U);
  EXPECT_EQ(Sent(call, 0, 1), 0U);
  for (const int size : {2, 3, 5, 7}) {
    std::uint64_t all = 0;
    for (int rank = 0; rank < size; ++rank) all += Sent(call, rank, size);
    EXPECT_EQ(all, 2 * 48U * static_cast<unsigned>(size - 1)) << size;
  }
  call.wire = DType::kFloat16;
  EXPECT_EQ(Sent(call, 0, 4), 36U);
  call.wire = DType::kFloat32;
  call.kind = CollectiveKind::kAllgather;
  EXPECT_EQ(Sent(call, 0, 4), 144U);
  call.kind = CollectiveKind::kBroadcast;
  call.root = 1;
  EXPECT_EQ(Sent(call, 0, 4), 0U);  // The last of the ring.
  EXPECT_EQ(Sent(call, 2, 4), 48U);
  call.kind = CollectiveKind::kAllToAll;
  call.send_counts = {1, 2, 3, 4};
  EXPECT_EQ(Sent(call, 2, 4), 28U);
}

}  // namespace
}  // namespace gradientflow
