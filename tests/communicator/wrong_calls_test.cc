#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <tuple>
#include <vector>

#include "gradientflow/collectives/choose.h"
#include "tests/communicator/ranks.h"

// Ranks whose calls differ: all get an error that says so, in bounded time, and
// never a wrong sum.
namespace gradientflow::testing {
namespace {

// What ranks call instead of the same. Buffers are large enough for both calls.
constexpr std::size_t kMost = 6000;
struct Buffers {
  std::vector<double> in = std::vector<double>(kMost * 3, 1.0);
  std::vector<double> out = std::vector<double>(kMost * 3, 1.0);
};

CollectiveCall Make(Buffers* buffers, CollectiveKind kind, std::size_t count,
                    DType dtype, int root = 0) {
  CollectiveCall call;
  call.kind = kind;
  call.input = buffers->in.data();
  call.output = buffers->out.data();
  call.count = count;
  call.dtype = call.wire = dtype;
  call.root = root;
  return call;
}

struct Disagreement {
  const char* what;
  std::function<CollectiveCall(Buffers*)> most;
  std::function<CollectiveCall(Buffers*)> odd;  // That of the last rank.
};

std::vector<Disagreement> Disagreements() {
  using Kind = CollectiveKind;
  const auto make = [](Kind kind, std::size_t count, DType dtype,
                       int root = 0) {
    return [=](Buffers* b) { return Make(b, kind, count, dtype, root); };
  };
  const auto op = [](ReduceOp which) {
    return [=](Buffers* b) {
      CollectiveCall call = Make(b, Kind::kAllreduce, 9, DType::kFloat32);
      call.op = which;
      return call;
    };
  };
  const auto step = [](std::uint64_t number, float scale) {
    return [=](Buffers* b) {
      CollectiveCall call = Make(b, Kind::kAllreduce, 9, DType::kFloat32);
      call.step = number;
      call.scale = scale;
      return call;
    };
  };
  const auto sum = make(Kind::kAllreduce, 1000, DType::kFloat32);
  return {
      {"count", sum, make(Kind::kAllreduce, 1001, DType::kFloat32)},
      {"many segments", sum, make(Kind::kAllreduce, kMost, DType::kFloat32)},
      {"nothing", sum, make(Kind::kAllreduce, 0, DType::kFloat32)},
      {"dtype", sum, make(Kind::kAllreduce, 1000, DType::kInt32)},
      {"dtype, equal bytes", sum, make(Kind::kAllreduce, 500, DType::kInt64)},
      {"operation", op(ReduceOp::kSum), op(ReduceOp::kMax)},
      {"step", step(1, 1.0F), step(2, 1.0F)},
      {"scale", step(1, 1.0F), step(1, 0.5F)},
      {"kind", sum, make(Kind::kBroadcast, 1000, DType::kFloat32)},
      {"kind, gathered", sum, make(Kind::kAllgather, 1000, DType::kFloat32)},
      {"barrier", make(Kind::kBarrier, 0, DType::kInt8), sum},
      {"root", make(Kind::kBroadcast, 1000, DType::kFloat32, 0),
       make(Kind::kBroadcast, 1000, DType::kFloat32, 1)},
      {"root of a reduce", make(Kind::kReduce, 50, DType::kFloat32, 0),
       make(Kind::kReduce, 50, DType::kFloat32, 1)},
  };
}

// The time-out is an end that these tests expect, but ranks must not meet it
// while they open: on a busy machine they stand still for a fifth of a second.
constexpr double kTimeOutSeconds = 1;

class WrongCalls : public ::testing::TestWithParam<std::tuple<Over, int>> {};

TEST_P(WrongCalls, ThatDifferEndOnAllRanks) {
  for (const Disagreement& disagreement : Disagreements()) {
    CommJob job;
    std::tie(job.over, job.size) = GetParam();
    job.options.segment_bytes = 4096;
    if (job.over == Over::kPlaces) job.options.algorithm = "gdraa";
    job.options.timeout_seconds = kTimeOutSeconds;
    RunRanks(job, [&](Communicator& comm) {
      Buffers first;
      const bool odd = comm.rank() == comm.size() - 1;
      Status status =
          comm.Run(odd ? disagreement.odd(&first) : disagreement.most(&first));
      // A rank may have finished its part of that call before it learns of the
      // error.
      for (int more = 0; status.ok() && more < 2; ++more) {
        Buffers next;
        status = comm.Run(
            Make(&next, CollectiveKind::kAllreduce, 10, DType::kFloat64));
      }
      EXPECT_FALSE(status.ok())
          << disagreement.what << " on rank " << comm.rank();
      EXPECT_TRUE(status.code() == StatusCode::kInvalidArgument ||
                  status.code() == StatusCode::kDeadlineExceeded)
          << disagreement.what << ": " << status.ToString();
    });
  }
}

TEST_P(WrongCalls, ThatARankDoesNotMakeEndWithItsName) {
  CommJob job;
  std::tie(job.over, job.size) = GetParam();
  job.options.timeout_seconds = kTimeOutSeconds;
  RunRanks(job, [&](Communicator& comm) {
    Status status;
    if (comm.rank() == 1) {
      // The error of the others must reach it.
      char nothing[1];
      status = comm.Recv(0, 3, nothing, 1);
    } else {
      Buffers buffers;
      status = comm.Run(
          Make(&buffers, CollectiveKind::kAllreduce, 10, DType::kFloat64));
    }
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded);
  });
}

TEST_P(WrongCalls, AreRefusedWhenTheyMakeNoSense) {
  CommJob job;
  std::tie(job.over, job.size) = GetParam();
  RunRanks(job, [&](Communicator& comm) {
    Buffers b;
    using Kind = CollectiveKind;
    std::vector<CollectiveCall> bad = {
        Make(&b, Kind::kBroadcast, 5, DType::kFloat32, comm.size()),
        Make(&b, Kind::kBroadcast, 5, DType::kFloat32, -1),
        Make(&b, Kind::kAllToAll, 5, DType::kFloat32),
        Make(&b, Kind::kGather, 5, DType::kFloat32),
        Make(&b, Kind::kScatter, 5, DType::kFloat32),
        Make(&b, Kind::kAllreduce, 5, static_cast<DType>(kernels::kDTypes)),
    };
    for (DType dtype : {DType::kInt32, DType::kUInt8}) {
      bad.push_back(Make(&b, Kind::kAllreduce, 5, dtype));
      bad.back().op = ReduceOp::kMean;
    }
    for (ReduceOp op :
         {ReduceOp::kBitAnd, ReduceOp::kBitOr, ReduceOp::kBitXor}) {
      bad.push_back(Make(&b, Kind::kAllreduce, 5, DType::kFloat32));
      bad.push_back(Make(&b, Kind::kReduce, 5, DType::kFloat16));
      bad.push_back(Make(&b, Kind::kReduceScatter, 1, DType::kFloat64));
      for (std::size_t i = 1; i <= 3; ++i) bad[bad.size() - i].op = op;
    }
    bad.push_back(Make(&b, Kind::kAllreduce, 5, DType::kFloat64));
    bad.back().wire = DType::kFloat16;
    bad.push_back(Make(&b, Kind::kAllreduce, 5, DType::kFloat32));
    bad.back().output = nullptr;
    bad.push_back(Make(&b, Kind::kAllreduce, 5, DType::kFloat32));
    bad.back().extents = {{0, 3}, {2, 2}};
    bad.push_back(Make(&b, Kind::kAllreduce, 5, DType::kFloat32));
    bad.back().op = static_cast<ReduceOp>(kReduceOps);
    bad.push_back(Make(&b, static_cast<Kind>(77), 5, DType::kFloat32));
    if (GetParam() != std::tuple{Over::kMemory, job.size}) {
      bad.push_back(Make(&b, Kind::kAllreduce, 5, DType::kFloat32));
      bad.back().algorithm = &allreduce::kShared;
    }
    for (const CollectiveCall& call : bad) {
      EXPECT_EQ(comm.Run(call).code(), StatusCode::kInvalidArgument);
    }
    // The communicator is unharmed.
    EXPECT_TRUE(comm.Run(Make(&b, Kind::kAllreduce, 5, DType::kFloat64)).ok());
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, WrongCalls,
                         ::testing::Values(std::tuple{Over::kMemory, 2},
                                           std::tuple{Over::kMemory, 3},
                                           std::tuple{Over::kMessages, 2},
                                           std::tuple{Over::kMessages, 3},
                                           std::tuple{Over::kPlaces, 2},
                                           std::tuple{Over::kPlaces, 3},
                                           std::tuple{Over::kTcp, 2},
                                           std::tuple{Over::kMixed, 3},
                                           std::tuple{Over::kRdma, 3}),
                         ParamName);

}  // namespace
}  // namespace gradientflow::testing
