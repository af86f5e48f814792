#include "gradientflow/buckets/dense.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

#include "gradientflow/base/manual_clock.h"
#include "gradientflow/observe/null_recorder.h"
#include "tests/collectives/manual_collective.h"
#include "transports/wire.h"

// What a dense aggregator asks of a collective, and when.
namespace gradientflow::testing {
namespace {

class Dense : public ::testing::Test {
 protected:
  // Tensors of random sizes, some of them empty.
  void Make(std::size_t bucket_bytes, DType pool = DType::kFloat32,
            DType wire = DType::kFloat16) {
    std::vector<std::size_t> sizes(1 + random_() % 30);
    for (std::size_t& size : sizes) size = random_() % 4 * (random_() % 500);
    layout_ = PoolLayout::Create(sizes, random_() % 2 == 0 ? 1 : 8).value();
    pool_.resize(layout_.elements() * SizeOf(pool) + 1);
    collective_.calls.clear();
    parts_ = {.collective = &collective_,
              .layout = &layout_,
              .pool = pool_.data(),
              .pool_dtype = pool,
              .wire_dtype = wire,
              .bucket_bytes = bucket_bytes,
              .recorder = &recorder_,
              .clock = &clock_};
    dense_ = std::make_unique<DenseAggregator>(parts_);
  }
  std::vector<Bucket> Plan(std::size_t bucket_bytes) const {
    return PlanDense(layout_, bucket_bytes, SizeOf(parts_.wire_dtype));
  }
  void EndAll() {
    for (std::size_t i = 0; i < collective_.calls.size(); ++i) {
      if (!collective_.calls[i].ended) collective_.End(i);
    }
  }

  std::mt19937_64 random_{19020685};
  ManualClock clock_;
  NullRecorder recorder_;
  ManualCollective collective_;
  PoolLayout layout_;
  std::vector<std::byte> pool_;
  AggregatorArgs parts_;
  std::unique_ptr<DenseAggregator> dense_;
};

constexpr std::size_t kInfinite = static_cast<std::size_t>(-1);
constexpr std::size_t kThetas[] = {0, 1, 700, 5000, kInfinite};

TEST_F(Dense, SendsABucketOnceItIsWrittenAndNoSooner) {
  for (int round = 0; round < 200; ++round) {
    const std::size_t theta = kThetas[round % 5];
    Make(theta);
    const std::vector<Bucket> plan = Plan(theta);
    dense_->Begin(7, 1.0F);
    EXPECT_EQ(dense_->result().buckets, plan.size());
    std::size_t written = 0;
    while (written < layout_.elements()) {
      written = std::min(layout_.elements(), written + 1 + random_() % 400);
      dense_->Advance(written);
      const auto ready = std::count_if(
          plan.begin(), plan.end(),
          [&](const Bucket& bucket) { return bucket.pool_end <= written; });
      ASSERT_EQ(collective_.calls.size(), static_cast<std::size_t>(ready))
          << "written up to " << written << ", theta " << theta;
    }
    ASSERT_EQ(collective_.calls.size(), plan.size());
    EndAll();
    EXPECT_TRUE(dense_->Done());
  }
}

TEST_F(Dense, CallsCoverThePoolInPlace) {
  for (const DType pool : {DType::kFloat32, DType::kBFloat16}) {
    Make(900, pool);
    dense_->Begin(12, 8.0F);
    dense_->Advance(layout_.elements());
    const std::vector<Bucket> plan = Plan(900);
    ASSERT_EQ(collective_.calls.size(), plan.size());
    std::size_t at = 0;
    for (std::size_t i = 0; i < collective_.calls.size(); ++i) {
      const CollectiveCall& call = collective_.calls[i].call;
      const std::size_t begin = plan[i].extents[0].begin;
      EXPECT_TRUE(layout_.Parts({at, begin - at}).empty()) << "left out";
      at = begin;
      EXPECT_EQ(call.kind, CollectiveKind::kAllreduce);
      EXPECT_EQ(call.output, pool_.data() + at * SizeOf(pool)) << i;
      EXPECT_EQ(call.dtype, pool);
      EXPECT_EQ(call.wire, DType::kFloat16);
      EXPECT_EQ(call.op, ReduceOp::kMean);
      EXPECT_EQ(call.channel, Channel::kGradients);
      EXPECT_EQ(call.unscale, 0.125F);
      EXPECT_EQ(call.step, 12U);
      EXPECT_EQ(call.bucket, i);
      EXPECT_TRUE(call.extents.empty());
      at += call.count;
    }
    EXPECT_EQ(at, layout_.elements());
    EndAll();
  }
}

TEST_F(Dense, IsDoneWhenAllBucketsAreBackInWhateverOrder) {
  for (int round = 0; round < 20; ++round) {
    Make(300);
    dense_->Begin(0, 1.0F);
    dense_->Advance(layout_.elements());
    std::vector<std::size_t> order(collective_.calls.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::shuffle(order.begin(), order.end(), random_);
    for (const std::size_t i : order) {
      EXPECT_FALSE(dense_->Done());
      collective_.End(i);
    }
    EXPECT_TRUE(dense_->Done());
    EXPECT_TRUE(dense_->result().status.ok());
    EXPECT_FALSE(dense_->result().nonfinite);
  }
}

TEST_F(Dense, ReportsTheFirstErrorAndAnyNonfiniteBucketOfItsStepAlone) {
  Make(0);
  dense_->Begin(0, 1.0F);
  dense_->Advance(layout_.elements());
  ASSERT_GE(collective_.calls.size(), 3U);
  collective_.End(1, Status(), kFlagNonfinite);
  collective_.End(2, Status(StatusCode::kUnavailable, "first"));
  collective_.End(0, Status(StatusCode::kAborted, "second"));
  EndAll();
  EXPECT_TRUE(dense_->Done());
  EXPECT_TRUE(dense_->result().nonfinite);
  EXPECT_EQ(dense_->result().status.message(), "first");
  dense_->Begin(1, 1.0F);
  EXPECT_FALSE(dense_->result().nonfinite);
  EXPECT_TRUE(dense_->result().status.ok());
}

TEST_F(Dense, LeavesTheLossScaleInPoolsOf16Bits) {
  for (const DType pool :
       {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
    Make(300, pool);
    dense_->Begin(0, 1024.0F);
    EXPECT_EQ(dense_->result().gradient_scale,
              pool == DType::kFloat32 ? 1.0F : 1024.0F);
  }
}

TEST_F(Dense, TakesAnotherBucketSizeWithTheNextStep) {
  Make(0);
  dense_->Begin(0, 1.0F);
  dense_->Advance(layout_.elements());
  EndAll();
  dense_->SetBucketBytes(kInfinite);
  dense_->Begin(1, 1.0F);
  EXPECT_EQ(dense_->result().buckets, 1U);
  dense_->Advance(layout_.elements());
  EXPECT_EQ(collective_.calls.back().call.count, layout_.elements());
}

TEST_F(Dense, RefusesTheStateOfASparseSession) {
  Make(0);
  const std::vector<std::byte> some(4);
  EXPECT_TRUE(dense_->CheckState(1, {}, {}).ok());
  EXPECT_EQ(dense_->CheckState(1, some, {}).code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(dense_->CheckState(1, {}, some).code(),
            StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace gradientflow::testing
