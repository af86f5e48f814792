#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <string>
#include <vector>

#include "tests/session/steps.h"

// Ranks whose calls differ: all get an error that says so, in bounded time, and
// never a wrong sum.
namespace gradientflow::testing {
namespace {

struct Difference {
  const char* what;  // The text must contain it.
  std::function<void(Options*, std::vector<TensorSpec>*)> make;
};

const Difference kDifferences[] = {
    {"tensors=", [](Options*, auto* t) { t->pop_back(); }},
    {"weight3", [](Options*, auto* t) { (*t)[3].elements = 65; }},
    {"another", [](Options*, auto* t) { (*t)[3].name = "another"; }},
    {"always dense", [](Options*, auto* t) { (*t)[3].always_dense = true; }},
    {"bucket_bytes", [](Options* o, auto*) { o->bucket_bytes = 4096; }},
    {"pool_dtype", [](Options* o, auto*) { o->pool_dtype = DType::kFloat16; }},
    {"wire_dtype", [](Options* o, auto*) { o->wire_dtype = DType::kFloat16; }},
    {"sparsity", [](Options* o, auto*) { o->sparsity = 0.5F; }},
    {"chunk_elements", [](Options* o, auto*) { o->chunk_elements = 100; }},
    {"reduce", [](Options* o, auto*) { o->reduce = ReduceOp::kSum; }},
    {"loss_scale", [](Options* o, auto*) { o->loss_scale = 2; }},
    {"algorithm", [](Options* o, auto*) { o->algorithm = "ring"; }},
};

TEST(Opening, NamesTheRankAndTheFirstDifference) {
  for (const Difference& difference : kDifferences) {
    Job job;
    job.size = 3;
    job.over = Over::kTcp;
    job.tensors = SomeTensors();
    job.adapt = [&](int rank, Options* options, auto* tensors) {
      if (rank == 1) difference.make(options, tensors);
    };
    OpenRanks(job, [&](int rank, Opened opened) {
      ASSERT_FALSE(opened.ok()) << difference.what;
      EXPECT_EQ(opened.status().code(), StatusCode::kInvalidArgument);
      const std::string& text = opened.status().message();
      EXPECT_NE(text.find("rank 1"), std::string::npos) << rank << text;
      EXPECT_NE(text.find(difference.what), std::string::npos) << text;
    });
  }
}

TEST(Opening, InOneProcessRefusesDifferencesToo) {
  for (const Difference& difference : kDifferences) {
    Job job;
    job.size = 3;
    job.tensors = SomeTensors();
    job.adapt = [&](int rank, Options* options, auto* tensors) {
      if (rank == 1) difference.make(options, tensors);
    };
    OpenRanks(job, [&](int, Opened opened) {
      ASSERT_FALSE(opened.ok()) << difference.what;
      EXPECT_EQ(opened.status().code(), StatusCode::kInvalidArgument)
          << opened.status().ToString();
    });
  }
}

TEST(Opening, TellsTheOthersWhyARankCannot) {
  Job job;
  job.size = 3;
  job.over = Over::kTcp;
  job.tensors = SomeTensors();
  job.adapt = [](int rank, Options* options, auto*) {
    if (rank == 1) options->device = "cuda:1023";
  };
  OpenRanks(job, [&](int rank, Opened opened) {
    ASSERT_FALSE(opened.ok());
    const std::string& text = opened.status().message();
    if (rank == 1) return;
    EXPECT_NE(text.find("rank 1 did not open its communicator"),
              std::string::npos)
        << text;
    EXPECT_NE(text.find("device"), std::string::npos) << text;
  });
}

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

// The time-out is an end that these tests expect, however early it comes: two
// ticks are enough.
constexpr double kTimeOutSeconds = 0.2;

class Calls : public ::testing::TestWithParam<std::tuple<Over, int>> {};

TEST_P(Calls, ThatDifferEndOnAllRanks) {
  for (const Disagreement& disagreement : Disagreements()) {
    Job job;
    std::tie(job.over, job.size) = GetParam();
    job.options.segment_bytes = 4096;
    if (job.over == Over::kPlaces) job.options.algorithm = "gdraa";
    job.options.timeout_seconds = kTimeOutSeconds;
    RunRanks(job, [&](GradientSession& session) {
      Buffers first;
      const bool odd = session.rank() == session.size() - 1;
      Status status = session.communicator().Run(
          odd ? disagreement.odd(&first) : disagreement.most(&first));
      // A rank may have finished its part of that call before it learns of the
      // error.
      for (int more = 0; status.ok() && more < 2; ++more) {
        Buffers next;
        status = session.communicator().Run(
            Make(&next, CollectiveKind::kAllreduce, 10, DType::kFloat64));
      }
      EXPECT_FALSE(status.ok())
          << disagreement.what << " on rank " << session.rank();
      EXPECT_TRUE(status.code() == StatusCode::kInvalidArgument ||
                  status.code() == StatusCode::kDeadlineExceeded)
          << disagreement.what << ": " << status.ToString();
    });
  }
}

TEST_P(Calls, ThatARankDoesNotMakeEndWithItsName) {
  Job job;
  std::tie(job.over, job.size) = GetParam();
  job.options.timeout_seconds = kTimeOutSeconds;
  job.tensors = SomeTensors();
  RunRanks(job, [&](GradientSession& session) {
    Status status;
    if (session.rank() == 1) {
      // In backward for ever: the error of the others must reach it.
      GradientSession* absent = &session;
      char nothing[1];
      status = absent->communicator().Recv(0, 3, nothing, 1);
    } else {
      Buffers buffers;
      status = session.communicator().Run(
          Make(&buffers, CollectiveKind::kAllreduce, 10, DType::kFloat64));
    }
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded);
  });
}

TEST_P(Calls, AreRefusedWhenTheyMakeNoSense) {
  Job job;
  std::tie(job.over, job.size) = GetParam();
  RunRanks(job, [&](GradientSession& session) {
    Buffers b;
    using Kind = CollectiveKind;
    std::vector<CollectiveCall> bad = {
        Make(&b, Kind::kBroadcast, 5, DType::kFloat32, session.size()),
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
      EXPECT_EQ(session.communicator().Run(call).code(),
                StatusCode::kInvalidArgument);
    }
    // The session is unharmed.
    EXPECT_TRUE(session.communicator()
                    .Run(Make(&b, Kind::kAllreduce, 5, DType::kFloat64))
                    .ok());
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, Calls,
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
