#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "gradientflow/collectives/collective.h"
#include "gradientflow/communicator/core.h"
#include "tests/communicator/ranks.h"

// Jobs over TCP whose large messages are moved by io threads.
namespace gradientflow::testing {
namespace {

constexpr std::size_t kCounts[] = {0, 1, 49'157, 1'000'003};

// A fifth of it is lent, too.
constexpr std::size_t kSegmentBytes = std::size_t{2} << 20;

// What the ranks have after allreduces of random floats.
using Results = std::vector<std::vector<float>>;

void Work(Communicator& comm, std::vector<float>* result) {
  std::mt19937 random(static_cast<std::uint32_t>(comm.rank()));
  for (const std::size_t count : kCounts) {
    std::vector<float> values(count);
    for (float& value : values) {
      value = static_cast<float>(random()) / 1e6F - 1000;
    }
    CollectiveCall call;
    call.kind = CollectiveKind::kAllreduce;
    call.input = call.output = reinterpret_cast<std::byte*>(values.data());
    call.count = count;
    call.dtype = call.wire = DType::kFloat32;
    const Status status = comm.Run(call);
    ASSERT_TRUE(status.ok()) << count << " values: " << status.ToString();
    result->insert(result->end(), values.begin(), values.end());
  }
}

Results Train(Over over, int size, int io_threads) {
  CommJob job;
  job.over = over;
  job.size = size;
  job.options.io_threads = io_threads;
  job.options.segment_bytes = kSegmentBytes;
  Results results(static_cast<std::size_t>(size));
  RunRanks(job, [&](Communicator& comm) {
    Work(comm, &results[static_cast<std::size_t>(comm.rank())]);
  });
  return results;
}

class IoThreadsOf : public ::testing::TestWithParam<std::tuple<Over, int>> {};

TEST_P(IoThreadsOf, GiveTheSameBitsAsNone) {
  const auto [over, size] = GetParam();
  const Results alone = Train(over, size, 0);
  ASSERT_EQ(alone[0].size(), 1'049'161U);
  for (const int threads : {1, 2}) {
    EXPECT_TRUE(Train(over, size, threads) == alone) << threads << " threads";
  }
}

// A rank gives up while the others wait for large messages of it.
TEST_P(IoThreadsOf, AnAbortEndsAllRanks) {
  const auto [over, size] = GetParam();
  CommJob job;
  job.over = over;
  job.size = size;
  job.options.io_threads = 2;
  job.options.segment_bytes = kSegmentBytes;
  RunRanks(job, [&](Communicator& comm) {
    std::vector<float> values(4'000'037);
    CollectiveCall call;
    call.kind = CollectiveKind::kAllreduce;
    call.input = call.output = reinterpret_cast<std::byte*>(values.data());
    call.count = values.size();
    call.dtype = call.wire = DType::kFloat32;
    Status status = comm.Run(call);
    for (int i = 0; status.ok(); ++i) {
      if (i == 2 && comm.rank() == comm.size() - 1) {
        comm.Abort(Status(StatusCode::kAborted, "the disk is full"));
      }
      status = comm.Run(call);
    }
    EXPECT_EQ(status.code(), StatusCode::kAborted);
    EXPECT_NE(status.message().find("the disk is full"), std::string::npos)
        << status.ToString();
  });
}

INSTANTIATE_TEST_SUITE_P(Jobs, IoThreadsOf,
                         ::testing::Combine(::testing::Values(Over::kTcp,
                                                              Over::kNeeded),
                                            ::testing::Values(2, 3, 5)),
                         ParamName);

}  // namespace
}  // namespace gradientflow::testing
