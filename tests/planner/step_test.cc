// Steps that can be worked out by hand, and what must grow with what.
#include "gradientflow/planner/step.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "gradientflow/buckets/bucket_size.h"
#include "gradientflow/collectives/choose.h"
#include "gradientflow/planner/normal_max.h"

namespace gradientflow::planner {
namespace {

constexpr std::size_t kWord = 4;

// Two tensors of 1000 and 3000 elements, ready after 1 and 2 s of a backward of
// 2 s; the whole step is 3 s.
Workload TwoTensors() {
  Workload workload;
  workload.tensor_elements = {1000, 3000};
  workload.ready_seconds = {1, 2};
  workload.backward_seconds = 2;
  workload.compute_seconds = 3;
  workload.batch_samples = 10;
  return workload;
}

Cluster Ranks(int ranks, const LinkModel& link) {
  Cluster cluster;
  cluster.host_ranks = SpreadRanks(ranks, 1);
  cluster.costs = {link, link};
  cluster.segment_bytes = std::size_t{1} << 40;
  cluster.algorithm = &allreduce::kRing;
  return cluster;
}

StepForecast StepOf(const Workload& workload, const Exchange& exchange,
                    const Cluster& cluster) {
  const CallPrices prices(cluster, exchange.wire_element_bytes,
                          Pricing::kClosedForms);
  const CallPrices norms(cluster, kWord, Pricing::kClosedForms);
  return BestStep(workload, exchange, BucketingsOf(workload, exchange), cluster,
                  {&prices, &norms});
}

Exchange PerTensor() {
  Exchange exchange;
  exchange.theta_bytes = 0;
  return exchange;
}

TEST(Step, OneRankHasNoCommunication) {
  const auto step = StepOf(TwoTensors(), {}, Ranks(1, {1, 1, 1, 1}));
  EXPECT_EQ(step.terms.step, 3);
  EXPECT_EQ(step.terms.hidden, 0);
}

TEST(Step, WithoutLatencyOverInfiniteBandwidthOnlyComputeIsLeft) {
  const auto step = StepOf(TwoTensors(), PerTensor(), Ranks(8, {}));
  EXPECT_EQ(step.terms.step, 3);
  EXPECT_EQ(step.buckets, 2U);
}

// Two ranks, a ring of two rounds: 2 a + n b. With b = 1e-4 s per byte the
// tensors take 0.4 and 1.2 s, and a = 0.05 s adds 0.1 s to each.
TEST(Step, TwoTensorsByHand) {
  const Cluster cluster = Ranks(2, {0.05, 1e-4, 0, 0});
  const auto step = StepOf(TwoTensors(), PerTensor(), cluster);
  // The first is under way from 1 to 1.5 s, the second from 2 to 3.3 s.
  EXPECT_NEAR(step.terms.step, 3 + 1.3, 1e-9);
  EXPECT_NEAR(step.terms.hidden, 0.5, 1e-9);
  EXPECT_NEAR(step.terms.latency, 1.3 * 0.2 / 1.8, 1e-9);
  EXPECT_NEAR(step.terms.latency + step.terms.bytes, 1.3, 1e-9);

  Exchange after = PerTensor();
  after.overlap = false;
  EXPECT_NEAR(StepOf(TwoTensors(), after, cluster).terms.step, 3 + 1.8, 1e-9);

  Exchange one;
  one.theta_bytes = kInfiniteTheta;
  EXPECT_NEAR(StepOf(TwoTensors(), one, cluster).terms.step, 3 + 1.7, 1e-9);
  // It is left to the model: two messages end first.
  EXPECT_NEAR(StepOf(TwoTensors(), {}, cluster).terms.step, 3 + 1.3, 1e-9);
}

TEST(Step, OneTensorByHand) {
  Workload workload = TwoTensors();
  workload.tensor_elements = {500};
  workload.ready_seconds = {2};
  // Four ranks: 6 a + 3/2 n b.
  const auto step = StepOf(workload, {}, Ranks(4, {0.01, 1e-4, 0, 0}));
  EXPECT_NEAR(step.terms.step, 3 + 0.06 + 0.3, 1e-9);
  EXPECT_EQ(step.buckets, 1U);
}

// A ring of two ranks sends two messages per call.
TEST(Step, MessagesUnderBackwardMakeItLonger) {
  Cluster cluster = Ranks(2, {0.05, 1e-4, 0, 0});
  cluster.across_backward_seconds_per_message = 0.125;
  const auto step = StepOf(TwoTensors(), PerTensor(), cluster);
  // The first starts under backward, so that the second is ready at 2.25 s,
  // which is when backward ends; that one costs nothing.
  EXPECT_NEAR(step.terms.host, 0.25, 1e-9);
  EXPECT_NEAR(step.terms.step, 3 + 0.25 + 1.3, 1e-9);
  // One of four ranks sends six.
  Cluster four = Ranks(4, {});
  four.across_backward_seconds_per_message = 0.01;
  EXPECT_NEAR(StepOf(TwoTensors(), PerTensor(), four).terms.host, 0.06, 1e-9);
  // One rank sends none.
  Cluster one = Ranks(1, {});
  one.across_backward_seconds_per_message = 0.125;
  one.backward_seconds_per_call = 0.5;
  EXPECT_EQ(StepOf(TwoTensors(), PerTensor(), one).terms.step, 3);
}

// With ready times of 1.75 and 2 s, backward ends when the first call, of 0.5
// s, is halfway: the messages after that take nothing from it.
TEST(Step, MessagesAfterBackwardTakeNothingFromIt) {
  Workload workload = TwoTensors();
  workload.ready_seconds = {1.75, 2};
  Cluster cluster = Ranks(2, {0.05, 1e-4, 0, 0});
  cluster.across_backward_seconds_per_message = 0.05;
  // d is 0.1 s times the part of the call under backward: (0.25 + d) / 0.5.
  EXPECT_NEAR(StepOf(workload, PerTensor(), cluster).terms.host, 0.0625, 1e-9);
}

// The same by call, whatever its messages are.
TEST(Step, CallsUnderBackwardMakeItLonger) {
  Cluster cluster = Ranks(2, {0.05, 1e-4, 0, 0});
  cluster.backward_seconds_per_call = 0.25;
  const auto step = StepOf(TwoTensors(), PerTensor(), cluster);
  EXPECT_NEAR(step.terms.host, 0.25, 1e-9);
  EXPECT_NEAR(step.terms.step, 3 + 0.25 + 1.3, 1e-9);
}

TEST(Step, TheSlowestOfManyIsAwaited) {
  Workload workload = TwoTensors();
  workload.spread_fraction = 0.1;
  const auto step = StepOf(workload, PerTensor(), Ranks(2, {}));
  // The larger of two normal numbers is 1 / sqrt(pi) above the mean.
  EXPECT_NEAR(step.terms.slowest, 0.3 / std::sqrt(M_PI), 1e-6);
  EXPECT_NEAR(step.terms.step, 3 + step.terms.slowest, 1e-12);
}

TEST(Step, ExpectedMaximaAreThoseOfTheTables) {
  // Tippett, 1925, and Harter, 1961.
  EXPECT_EQ(ExpectedMaximum(1), 0);
  EXPECT_NEAR(ExpectedMaximum(2), 0.56419, 1e-5);
  EXPECT_NEAR(ExpectedMaximum(10), 1.53875, 1e-5);
  EXPECT_NEAR(ExpectedMaximum(100), 2.50759, 1e-5);
  EXPECT_NEAR(ExpectedMaximum(1000), 3.24144, 1e-4);
}

// 4000 elements in chunks of 1000, of which half are sent: chunks 0 and 2.
Exchange EverySecondChunk() {
  Exchange csc = PerTensor();
  csc.csc = true;
  csc.sparsity = 0.5;
  csc.chunk_elements = 1000;
  return csc;
}

TEST(Step, CscByHand) {
  Cluster cluster = Ranks(2, {0.05, 1e-4, 0, 0});
  const Exchange csc = EverySecondChunk();
  const auto bucketings = BucketingsOf(TwoTensors(), csc);
  ASSERT_EQ(bucketings.size(), 1U);
  ASSERT_EQ(bucketings[0].messages.size(), 2U);
  EXPECT_EQ(bucketings[0].messages[0].ready_seconds, 1);
  EXPECT_EQ(bucketings[0].messages[1].ready_seconds, 2);
  EXPECT_EQ(bucketings[0].messages[1].bytes, 4000);
  const auto step = StepOf(TwoTensors(), csc, cluster);
  // 0.1 + 0.4 s for the second, and four norms: 0.1 + 16e-4 s.
  EXPECT_NEAR(step.terms.latency + step.terms.bytes, 0.5, 1e-9);
  EXPECT_NEAR(step.terms.csc, 0.1 + 16e-4, 1e-9);
  // The second message waits for its own pass of 16000 bytes, at 80000 per
  // second. The rest of what is passed is done under it.
  cluster.memory_bytes_per_second = 80000;
  EXPECT_NEAR(StepOf(TwoTensors(), csc, cluster).terms.csc, 0.2 + 0.1 + 16e-4,
              1e-9);
  // At 20000 per second the message is back at 3.3 s, and the norms wait until
  // all 40000 bytes that are ready at 2 s are passed: until 4 s.
  cluster.memory_bytes_per_second = 20000;
  EXPECT_NEAR(StepOf(TwoTensors(), csc, cluster).terms.csc, 1.5 + 0.1 + 16e-4,
              1e-9);
}

// One of four is the second, which is ready at 2 s, and not the first.
TEST(Step, CscSendsTheMiddleOfAStretch) {
  Exchange csc = EverySecondChunk();
  csc.sparsity = 0.75;
  const auto bucketings = BucketingsOf(TwoTensors(), csc);
  ASSERT_EQ(bucketings[0].messages.size(), 1U);
  EXPECT_EQ(bucketings[0].messages[0].ready_seconds, 2);
}

// The pass follows backward, whatever the buckets are.
TEST(Step, CscPassesOverAGradientOnceItIsThere) {
  Cluster cluster = Ranks(2, {0.05, 1e-4, 0, 0});
  cluster.memory_bytes_per_second = 80000;
  Exchange one = EverySecondChunk();
  one.theta_bytes = kInfiniteTheta;
  const auto bucketings = BucketingsOf(TwoTensors(), one);
  ASSERT_EQ(bucketings[0].messages.size(), 1U);
  // The first chunk is passed from 1 to 1.2 s, so 0.2 s are left for the
  // second.
  EXPECT_NEAR(StepOf(TwoTensors(), one, cluster).terms.csc, 0.2 + 0.1 + 16e-4,
              1e-9);
}

// While there is something to pass over, each of the two rounds waits for half
// a pass, and the passes get what the wire leaves of the thread that drives.
TEST(Step, CscPassesAndTheWireShareTheDriver) {
  Cluster cluster = Ranks(2, {0.05, 1e-4, 0, 0});
  cluster.memory_bytes_per_second = 80000;
  cluster.pass_seconds = 0.1;
  const Exchange csc = EverySecondChunk();
  // The second message starts at 2.2 s and takes 0.5 s, or 0.6 s beside passes.
  // 24000 bytes are passed over until 2.5 s, when half of it is done.
  EXPECT_NEAR(StepOf(TwoTensors(), csc, cluster).terms.csc,
              0.2 + 0.05 + 0.1 + 16e-4, 1e-9);
  // It sends 4000 bytes, which keep the driver for 0.2 of these 0.6 s, so
  // passes get 2/3 of it, and end at 2.65 s; by then 3/4 of the message is
  // done.
  cluster.driver_seconds_per_byte = 5e-5;
  EXPECT_NEAR(StepOf(TwoTensors(), csc, cluster).terms.csc,
              0.2 + 0.075 + 0.1 + 16e-4, 1e-9);
}

// 16 bytes for each element that is sent, 12 for each that is kept; of a pool
// of 16 bits 12 and 10.
TEST(Step, CscPassesOverGradientsAndTheirResiduals) {
  Workload workload = TwoTensors();
  for (const bool half : {false, true}) {
    workload.pool_element_bytes = half ? 2 : 4;
    const auto bucketings = BucketingsOf(workload, EverySecondChunk());
    ASSERT_EQ(bucketings[0].kept.size(), 1U);
    EXPECT_EQ(bucketings[0].kept[0].bytes, half ? 20000 : 24000);
    EXPECT_EQ(bucketings[0].kept[0].ready_seconds, 2);
    ASSERT_EQ(bucketings[0].sent.size(), 2U);
    EXPECT_EQ(bucketings[0].messages[0].passes_end, 1U);
    EXPECT_EQ(bucketings[0].messages[1].passes_end, 2U);
    const Pass& own = bucketings[0].sent[1];
    EXPECT_EQ(own.bytes, half ? 12000 : 16000);
    EXPECT_EQ(own.ready_seconds, 2);
  }
}

TEST(Step, BucketsAreThoseOfTheLibrary) {
  Workload workload = TwoTensors();
  workload.tensor_elements = {30000, 1, 70000, 20000, 0, 9};
  workload.ready_seconds = {0.1, 0.3, 0.2, 1, 1.1, 2};
  BackwardProfile profile{workload.tensor_elements, workload.ready_seconds};
  const CallCost cost{1e-3, 1e-6};
  Exchange exchange;
  exchange.wire_element_bytes = 2;
  // The cost of the library as two measured sizes.
  const CallPrices prices(
      {{0, 1e-3, 1e-3, nullptr}, {1e6, 1e-3 + 1, 1e-3, nullptr}});
  const BucketForecast wanted = ChooseBucketSize(profile, 2, cost);
  const auto step =
      BestStep(workload, exchange, BucketingsOf(workload, exchange),
               Ranks(1, {}), {&prices, nullptr});
  EXPECT_EQ(step.buckets, wanted.buckets);
  EXPECT_NEAR(step.terms.latency + step.terms.bytes, wanted.exposed_seconds,
              1e-9);
}

TEST(Step, GrowsWithLatencyBytesAndRanks) {
  Workload workload = TwoTensors();
  workload.spread_fraction = 0.05;
  const LinkModel link{1e-3, 1e-5, 0, 1e-4};
  for (const CollectiveAlgorithm* algorithm :
       {&allreduce::kRing, &allreduce::kTwoSync,
        static_cast<const CollectiveAlgorithm*>(nullptr)}) {
    double before = 0;
    for (const int ranks : {2, 3, 4, 8, 16, 33, 64, 128, 1000, 4096}) {
      Cluster cluster = Ranks(ranks, link);
      cluster.algorithm = algorithm;
      // Beyond that two_sync has a stand-in.
      if (algorithm != &allreduce::kTwoSync || ranks <= 64) {
        const double step = StepOf(workload, {}, cluster).terms.step;
        if (algorithm != nullptr) {
          EXPECT_GE(step, before) << ranks;
        }
        before = step;
        Cluster slow = cluster;
        slow.costs.across.latency_seconds *= 1.5;
        EXPECT_GT(StepOf(workload, {}, slow).terms.step, step) << ranks;
        slow = cluster;
        slow.costs.across.seconds_per_byte *= 1.5;
        EXPECT_GT(StepOf(workload, {}, slow).terms.step, step) << ranks;
      }
    }
  }
}

}  // namespace
}  // namespace gradientflow::planner
