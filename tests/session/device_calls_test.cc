#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <ostream>
#include <string>

#include "tests/session/steps.h"

// How many calls of the device's interface a step with NCCL makes. Each costs
// the host about a microsecond, and those that order streams delay the device.
namespace gradientflow::testing {
namespace {

// Each tensor is a section of the pool and a bucket.
constexpr std::size_t kElements = std::size_t{128} << 10;

struct Calls {
  int records = 0;
  int waits = 0;
  int launches = 0;
  int copies = 0;  // Fills, too.
  int times = 0;   // Of events.

  bool operator==(const Calls&) const = default;
  Calls operator-(const Calls& other) const {
    return {records - other.records, waits - other.waits,
            launches - other.launches, copies - other.copies,
            times - other.times};
  }
};
void PrintTo(const Calls& calls, std::ostream* out) {
  *out << calls.records << " records, " << calls.waits << " waits, "
       << calls.launches << " launches, " << calls.copies << " copies, "
       << calls.times << " times";
}

Calls CallsOf(const FakeDevice& device) {
  const auto count = [&](FakeCall call) {
    return static_cast<int>(device.count(call));
  };
  return {count(FakeCall::kRecord), count(FakeCall::kWait),
          count(FakeCall::kLaunch),
          count(FakeCall::kCopy) + count(FakeCall::kFill),
          count(FakeCall::kSecondsSince)};
}

struct Case {
  const char* name;
  int size;
  DType pool;
  DType wire;
  float sparsity;
  // The calls that a bucket costs, including the hook's record of its section,
  // and those that the rest of a step costs.
  Calls bucket;
  Calls rest;
};
void PrintTo(const Case& one, std::ostream* out) { *out << one.name; }

constexpr DType kFloat = DType::kFloat32;
constexpr DType kHalf = DType::kFloat16;
constexpr Case kCases[] = {
    {"Dense", 2, kFloat, kFloat, 0, {2, 1, 1, 0, 2}, {1, 0, 0, 2, 1}},
    {"DenseHalf", 2, kHalf, kHalf, 0, {2, 1, 1, 0, 2}, {1, 0, 0, 2, 1}},
    {"DenseSummedHere", 3, kHalf, kHalf, 0, {4, 3, 2, 0, 2}, {1, 0, 0, 2, 1}},
    {"DenseConverted", 2, kFloat, kHalf, 0, {5, 4, 2, 0, 2}, {2, 1, 0, 2, 1}},
    {"DenseConvertedAndSummedHere",
     3,
     kFloat,
     kHalf,
     0,
     {5, 4, 4, 0, 2},
     {2, 1, 0, 2, 1}},
    {"Sparse", 2, kFloat, kFloat, 0.5F, {5, 4, 2, 0, 2}, {4, 2, 2, 3, 2}},
    {"SparseConverted",
     2,
     kFloat,
     kHalf,
     0.5F,
     {5, 4, 2, 0, 2},
     {4, 2, 2, 3, 2}},
};

class DeviceCalls : public ::testing::TestWithParam<Case> {
 protected:
  // The calls of a step with so many buckets.
  static Calls OfStep(int buckets) {
    const Case& one = GetParam();
    Job job;
    job.over = Over::kNccl;
    job.size = one.size;
    for (int i = 0; i < buckets; ++i) {
      job.tensors.push_back({"weight" + std::to_string(i), kElements});
    }
    job.options.pool_dtype = one.pool;
    job.options.wire_dtype = one.wire;
    job.options.sparsity = one.sparsity;
    job.options.chunk_elements = kElements / 4;
    job.options.bucket_bytes = kElements * SizeOf(one.wire) - 1;
    Calls calls;
    RunRanks(job, [&](GradientSession& session) {
      const FakeDevice& device = *DeviceOfThisRank();
      // CSC sends all chunks in its first step.
      const Calls before = CallsOf(device);
      for (std::size_t i = session.tensors(); i-- > 0;) {
        session.GradientReady(i);
      }
      const Result<StepStats> stats = session.FinishStep();
      ASSERT_TRUE(stats.ok()) << stats.status().ToString();
      EXPECT_EQ(stats.value().buckets, static_cast<std::uint64_t>(buckets));
      if (session.rank() == 0) calls = CallsOf(device) - before;
    });
    return calls;
  }
};

TEST_P(DeviceCalls, OfABucketAndOfTheRestOfAStep) {
  const Calls two = OfStep(2);
  const Calls three = OfStep(3);
  const Calls bucket = three - two;
  EXPECT_EQ(bucket, GetParam().bucket);
  EXPECT_EQ(two - bucket - bucket, GetParam().rest);
}

INSTANTIATE_TEST_SUITE_P(Cases, DeviceCalls, ::testing::ValuesIn(kCases),
                         [](const auto& one) {
                           return std::string(one.param.name);
                         });

}  // namespace
}  // namespace gradientflow::testing
