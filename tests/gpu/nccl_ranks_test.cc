#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "gradientflow/base/clock.h"
#include "gradientflow/base/str_cat.h"
#include "gradientflow/device/cuda_device.h"
#include "gradientflow/nccl/create.h"
#include "gradientflow/session.h"
#include "tests/faults/processes.h"
#include "tests/gpu/ranks.h"

// NCCL itself between two processes on one GPU. NCCL normally refuses that; the
// settings make it assume two hosts, which talk over TCP. This says nothing
// about speed.
namespace gradientflow::testing {
namespace {

constexpr int kRanks = 2;
constexpr char kSkipped[] = "skipped: ";  // No GPU, or no NCCL.

// NCCL reads these variables itself, when it starts.
void SetUpNccl(int rank) {
  ::setenv("NCCL_HOSTID", StrCat("rank", rank).c_str(), 1);
  ::setenv("NCCL_SOCKET_IFNAME", "lo", 1);
  ::setenv("NCCL_IB_DISABLE", "1", 1);
  ::setenv("NCCL_ALGO", "Ring", 1);
  ::setenv("NCCL_PROTO", "Simple", 1);
  ::setenv("NCCL_MAX_CTAS", "2", 1);
}

struct Ended {
  bool yes = false;
  Status status;

  static void Set(void* self, std::uint64_t, std::uint32_t,
                  const Status& status) {
    *static_cast<Ended*>(self) = {true, status};
  }
};

float ValueOf(int rank, std::size_t i, std::size_t count) {
  std::mt19937_64 random(count * 7919 + i * kRanks +
                         static_cast<std::size_t>(rank));
  return std::normal_distribution<float>()(random);
}

class Rank {
 public:
  Rank(int rank, GradientSession& session) : rank_(rank), session_(session) {}

  Status Open() {
    auto device = OpenCudaDevice(0);
    if (!device.ok()) return device.status();
    device_ = std::move(device).value();
    auto api = LoadNccl("");
    if (!api.ok()) return api.status();
    auto stream = device_->NewStream(/*urgent=*/false);
    if (!stream.ok()) return stream.status();
    stream_ = std::move(stream).value();
    NcclArgs args;
    args.api = std::move(api).value();
    args.rank = rank_;
    args.size = kRanks;
    args.device = device_.get();
    args.clock = &clock_;
    args.broadcast = [this](void* data, std::size_t bytes) {
      CollectiveCall call;
      call.kind = CollectiveKind::kBroadcast;
      call.output = data;
      call.count = bytes;
      call.dtype = call.wire = DType::kInt8;
      return session_.communicator().Run(call);
    };
    return device_->RunCurrent([&]() -> Status {
      auto made = NcclCollective::Create(std::move(args));
      if (!made.ok()) return made.status();
      collective_ = std::move(made).value();
      return Status();
    });
  }

  // The mean of random numbers, compared with float64.
  Status CheckAllreduce(std::size_t count, DType wire, double tolerance) {
    std::vector<float> values(count);
    for (std::size_t i = 0; i < count; ++i)
      values[i] = ValueOf(rank_, i, count);
    auto memory = device_->Allocate(count * sizeof(float));
    if (!memory.ok()) return memory.status();
    GF_RETURN_IF_ERROR(Copy(memory.value().get(), values.data(), count));
    CollectiveCall call;
    call.kind = CollectiveKind::kAllreduce;
    call.output = memory.value().get();
    call.count = count;
    call.dtype = DType::kFloat32;
    call.wire = wire;
    call.op = ReduceOp::kMean;
    GF_RETURN_IF_ERROR(RunCall(call));
    GF_RETURN_IF_ERROR(Copy(values.data(), memory.value().get(), count));
    for (std::size_t i = 0; i < count; ++i) {
      double expected = 0;
      for (int r = 0; r < kRanks; ++r) {
        expected += static_cast<double>(ValueOf(r, i, count)) / kRanks;
      }
      if (std::fabs(values[i] - expected) <= tolerance) continue;
      return Status(StatusCode::kDataLoss,
                    StrCat("allreduce of ", count, ", element ", i,
                           ": expected ", expected, ", got ", values[i]));
    }
    return Status();
  }

 private:
  Status Copy(void* dst, const void* src, std::size_t count) {
    if (count == 0) return Status();
    GF_RETURN_IF_ERROR(stream_->Copy(dst, src, count * sizeof(float)));
    return stream_->Synchronize();
  }

  Status RunCall(const CollectiveCall& call) {
    Ended ended;
    collective_->Start(call, {&Ended::Set, &ended, 0});
    while (!ended.yes) collective_->Poll();
    return ended.status;
  }

  const int rank_;
  GradientSession& session_;
  const SteadyClock clock_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<NcclCollective> collective_;
};

Result<std::string> RankMain(int rank, const std::string& rendezvous) {
  SetUpNccl(rank);
  // On the CPU, so that the ranks can meet.
  Options options;
  options.rank = rank;
  options.size = kRanks;
  options.rendezvous = rendezvous;
  options.socket_ifname = "lo";
  auto session = GradientSession::Open(options, {});
  if (!session.ok()) return session.status();
  Rank own(rank, *session.value());
  const Status opened = own.Open();
  if (opened.code() == StatusCode::kUnimplemented) {
    return StrCat(kSkipped, opened.message());
  }
  GF_RETURN_IF_ERROR(opened);
  for (const std::size_t count : {0, 1, 1009, 1 << 20}) {
    GF_RETURN_IF_ERROR(own.CheckAllreduce(count, DType::kFloat32, 1e-6));
    GF_RETURN_IF_ERROR(own.CheckAllreduce(count, DType::kFloat16, 4e-3));
  }
  return std::string("right");
}

TEST(NcclOnOneGpu, TwoRanksGetTheMean) {
  const auto rendezvous = faults::LocalRendezvous();
  ASSERT_TRUE(rendezvous.ok());
  // In child processes, since CUDA does not survive a fork.
  const auto said = RunRanks(
      kRanks, [&](int rank) { return RankMain(rank, rendezvous.value()); });
  ASSERT_TRUE(said.ok()) << said.status().ToString();
  for (const std::string& text : said.value()) {
    if (text.rfind(kSkipped, 0) == 0) GTEST_SKIP() << text;
    EXPECT_EQ(text, "right");
  }
}

}  // namespace
}  // namespace gradientflow::testing
