#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gradientflow/device/device.h"
#include "tests/communicator/ranks.h"
#include "tests/device/fake_device.h"

// Plain calls on buffers of a device, between calls on host memory.
namespace gradientflow::testing {
namespace {

// A buffer on the rank's device, or on the host if the rank has none.
class Buffer {
 public:
  explicit Buffer(std::vector<float> values) : count_(values.size()) {
    FakeDevice* device = DeviceOfThisRank();
    if (count_ == 0) return;
    if (device != nullptr) {
      device_ = std::move(device->Allocate(count_ * sizeof(float))).value();
      std::memcpy(device_.get(), values.data(), count_ * sizeof(float));
    } else {
      host_ = std::move(values);
    }
  }
  // Null if the buffer is empty.
  float* data() {
    return device_ ? reinterpret_cast<float*>(device_.get()) : host_.data();
  }
  std::vector<float> values() { return {data(), data() + count_}; }

 private:
  std::size_t count_;
  DeviceMemory device_;
  std::vector<float> host_;
};

std::vector<float> Of(std::size_t count, float value) {
  return std::vector<float>(count, value);
}

class DeviceCalls : public ::testing::TestWithParam<Over> {
 protected:
  static CommJob MakeJob(int size) {
    CommJob job;
    job.over = GetParam();
    job.size = size;
    return job;
  }
};

// A call that is not valid is carried out nowhere, and the job goes on.
TEST_P(DeviceCalls, ThatAreNotValidAreRefusedBeforeAnythingIsStarted) {
  RunRanks(MakeJob(2), [](Communicator& comm) {
    Buffer buffer(Of(8, 1.0F));
    CollectiveCall sum;
    sum.output = buffer.data();
    sum.count = 8;
    CollectiveCall gather = sum;
    gather.kind = CollectiveKind::kGather;
    gather.recv_counts = {3};  // One count, but two ranks.
    CollectiveCall broadcast = sum;
    broadcast.kind = CollectiveKind::kBroadcast;
    broadcast.root = 2;
    CollectiveCall nowhere = sum;
    nowhere.group = 9;
    for (const CollectiveCall& call : {gather, broadcast, nowhere}) {
      EXPECT_EQ(comm.Run(call).code(), StatusCode::kInvalidArgument);
      EXPECT_EQ(comm.Start(call).status().code(), StatusCode::kInvalidArgument);
    }
    ASSERT_TRUE(comm.Run(sum).ok());
    EXPECT_EQ(buffer.values(), Of(8, 2.0F));
  });
}

// Calls that reach the executor by way of the device must not fall behind later
// calls on host memory.
TEST_P(DeviceCalls, OnMemoryOfAnotherDeviceAreRefused) {
  FakeDevice other;
  const DeviceMemory there = other.Allocate(8 * sizeof(float)).value();
  RunRanks(MakeJob(2), [&](Communicator& comm) {
    Buffer buffer(Of(8, 1.0F));
    CollectiveCall sum;
    sum.output = buffer.data();
    sum.count = 8;
    if (FakeDevice* device = DeviceOfThisRank()) {
      device->SetOther(&other);
      CollectiveCall elsewhere = sum;
      elsewhere.output = there.get();
      CollectiveCall half = sum;
      half.kind = CollectiveKind::kReduce;
      half.input = there.get();
      for (const CollectiveCall& call : {elsewhere, half}) {
        const Status refused = comm.Run(call);
        EXPECT_EQ(refused.code(), StatusCode::kInvalidArgument);
        EXPECT_NE(refused.message().find("another device"), std::string::npos)
            << refused.message();
      }
      device->SetOther(nullptr);
    }
    ASSERT_TRUE(comm.Run(sum).ok());
    EXPECT_EQ(buffer.values(), Of(8, 2.0F));
  });
}

// Over NCCL nobody compares them.
TEST(StagedCalls, ThatDifferBetweenRanksEndTheJob) {
  CommJob job;
  job.over = Over::kDevices;
  job.size = 2;
  RunRanks(job, [](Communicator& comm) {
    Buffer buffer(Of(8, 1.0F));
    CollectiveCall sum;
    sum.output = buffer.data();
    sum.count = comm.rank() == 1 ? 7 : 8;
    EXPECT_FALSE(comm.Run(sum).ok());
    EXPECT_FALSE(comm.Check().ok());
  });
}

TEST_P(DeviceCalls, KeepTheirOrderAmongCallsOnHostMemory) {
  RunRanks(MakeJob(3), [](Communicator& comm) {
    for (int round = 0; round < 30; ++round) {
      Buffer buffer(Of(5000, static_cast<float>(comm.rank() + round)));
      CollectiveCall on_device;
      on_device.output = buffer.data();
      on_device.count = 5000;
      const Result<std::uint64_t> ticket = comm.Start(on_device);
      ASSERT_TRUE(ticket.ok());
      // Equally long, so that one could be taken for the other.
      std::vector<float> host = Of(5000, 1000.0F);
      CollectiveCall on_host = on_device;
      on_host.output = host.data();
      ASSERT_TRUE(comm.Run(on_host).ok());
      CollectiveCall barrier;
      barrier.kind = CollectiveKind::kBarrier;
      ASSERT_TRUE(comm.Run(barrier).ok());
      const Status waited = comm.Wait(ticket.value());
      ASSERT_TRUE(waited.ok()) << waited.ToString();
      ASSERT_EQ(host, Of(5000, 3000.0F)) << round;
      ASSERT_EQ(buffer.values(),
                Of(5000, 3.0F + 3.0F * static_cast<float>(round)));
    }
  });
}

TEST_P(DeviceCalls, ReachRanksThatHaveNoElements) {
  RunRanks(MakeJob(3), [](Communicator& comm) {
    const auto me = static_cast<std::size_t>(comm.rank());
    // Rank 1 has nothing in any of them, and no pointers.
    const std::vector<std::size_t> counts = {3, 0, 5};
    for (int round = 0; round < 5; ++round) {
      Buffer mine(Of(counts[me], static_cast<float>(me + 1)));
      Buffer all(me == 0 ? Of(8, -1.0F) : std::vector<float>());
      CollectiveCall gather;
      gather.kind = CollectiveKind::kGather;
      gather.recv_counts = counts;
      gather.input = mine.data();
      gather.output = all.data();
      Status status = comm.Run(gather);
      ASSERT_TRUE(status.ok()) << status.ToString();
      if (me == 0) {
        EXPECT_EQ(all.values(), (std::vector<float>{1, 1, 1, 3, 3, 3, 3, 3}));
      }
      Buffer back(Of(counts[me], 0.0F));
      CollectiveCall scatter;
      scatter.kind = CollectiveKind::kScatter;
      scatter.send_counts = counts;
      scatter.input = all.data();
      scatter.output = back.data();
      status = comm.Run(scatter);
      ASSERT_TRUE(status.ok()) << status.ToString();
      EXPECT_EQ(back.values(), Of(counts[me], static_cast<float>(me + 1)));
      CollectiveCall exchange;
      exchange.kind = CollectiveKind::kAllToAll;
      exchange.send_counts = exchange.recv_counts = {2, 0, 2};
      if (me == 1) exchange.send_counts = exchange.recv_counts = {0, 0, 0};
      Buffer out(me == 1 ? std::vector<float>()
                         : Of(4, static_cast<float>(me)));
      Buffer in(me == 1 ? std::vector<float>() : Of(4, -1.0F));
      exchange.input = out.data();
      exchange.output = in.data();
      status = comm.Run(exchange);
      ASSERT_TRUE(status.ok()) << status.ToString();
      if (me != 1) {
        EXPECT_EQ(in.values(), (std::vector<float>{0, 0, 2, 2}));
      }
      std::vector<double> host(1, 1.0);
      CollectiveCall sum;
      sum.output = host.data();
      sum.count = 1;
      sum.dtype = sum.wire = DType::kFloat64;
      ASSERT_TRUE(comm.Run(sum).ok());
      EXPECT_EQ(host[0], 3.0);
    }
  });
}

// The other ranks learn within seconds of a rank that leaves during a call, and
// of one that never comes to it.
TEST_P(DeviceCalls, EndWhereARankCloses) {
  for (const bool begun : {true, false}) {
    // Lent until the communicator is gone.
    std::vector<std::unique_ptr<Buffer>> lent(2);
    RunRanks(MakeJob(2), [&](Communicator& comm) {
      auto& buffer = lent[static_cast<std::size_t>(comm.rank())];
      buffer = std::make_unique<Buffer>(Of(100000, 1.0F));
      CollectiveCall call;
      call.output = buffer->data();
      call.count = 100000;
      if (comm.rank() == 1) {
        // A call that rank 0 never makes.
        if (begun) {
          ASSERT_TRUE(comm.Start(call).ok());
        }
        return;
      }
      if (begun) {
        call.kind = CollectiveKind::kBroadcast;
        call.root = 1;
      }
      const auto began = std::chrono::steady_clock::now();
      const Status status = comm.Run(call);
      EXPECT_FALSE(status.ok());
      EXPECT_NE(status.message().find("rank 1"), std::string::npos)
          << status.ToString();
      EXPECT_LT(std::chrono::steady_clock::now() - began,
                std::chrono::seconds(20));
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Over, DeviceCalls,
                         ::testing::Values(Over::kDevices, Over::kSomeDevices,
                                           Over::kNccl),
                         [](const auto& over) {
                           return std::string(OverName(over.param));
                         });

}  // namespace
}  // namespace gradientflow::testing
