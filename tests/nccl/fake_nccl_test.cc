#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "gradientflow/nccl/nccl_comm.h"
#include "tests/nccl/nccl_oracle.h"
#include "tests/nccl/nccl_ranks.h"

// The fake NCCL behaves as the real one does where that is inconvenient.
namespace gradientflow::testing {
namespace {

using kernels::testing::Elements;
using nccl::ReturnCode;

// A rank that calls the library itself.
struct Caller {
  int rank;
  FakeDevice& device;
  const NcclApi& api;
  nccl::Comm comm;
  Stream& stream;

  ReturnCode Sum(void* data, std::size_t count, nccl::DataType type,
                 nccl::RedOp op) const {
    return api.all_reduce(data, data, count, type, op, comm, stream.native());
  }
  ReturnCode State() const {
    ReturnCode state = ReturnCode::kSuccess;
    EXPECT_EQ(api.comm_get_async_error(comm, &state), ReturnCode::kSuccess);
    return state;
  }
  ReturnCode Await() const {
    ReturnCode state = State();
    while (state == ReturnCode::kInProgress) {
      std::this_thread::yield();
      state = State();
    }
    return state;
  }
  void Abort() const { api.comm_abort(comm); }
};

void RunCallers(FakeNccl* nccl, int size,
                const std::function<void(const Caller&)>& body) {
  nccl::UniqueId id;
  ASSERT_EQ(nccl->api()->get_unique_id(&id), ReturnCode::kSuccess);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      FakeOptions options;
      options.id.index = rank;
      FakeDevice device(options);
      const Status ran = device.RunCurrent([&] {
        Result<std::unique_ptr<Stream>> stream = device.NewStream(false);
        EXPECT_TRUE(stream.ok());
        nccl::Config config;
        config.blocking = 0;
        Caller self{rank, device, *nccl->api(), nullptr, *stream.value()};
        EXPECT_EQ(
            self.api.comm_init_rank_config(&self.comm, size, id, rank, &config),
            ReturnCode::kInProgress);
        EXPECT_EQ(self.Await(), ReturnCode::kSuccess);
        body(self);
        return Status();
      });
      EXPECT_TRUE(ran.ok()) << ran.ToString();
    });
  }
  for (std::thread& thread : threads) thread.join();
}

DeviceMemory Upload(const Caller& self, const Elements& from) {
  Result<DeviceMemory> memory =
      self.device.Allocate(from.size() * SizeOf(from.type()));
  EXPECT_TRUE(memory.ok());
  std::memcpy(memory.value().get(), from.data(),
              from.size() * SizeOf(from.type()));
  return memory.value();
}

TEST(FakeNcclLibrary, IsNeverDoneWhenACallReturns) {
  FakeNccl nccl;
  RunCallers(&nccl, 2, [&](const Caller& self) {
    const DeviceMemory memory = Upload(self, Elements(DType::kFloat32, 5));
    EXPECT_EQ(
        self.Sum(memory.get(), 5, nccl::DataType::kFloat32, nccl::RedOp::kSum),
        ReturnCode::kInProgress);
    // Another call would be refused now.
    EXPECT_EQ(
        self.Sum(memory.get(), 5, nccl::DataType::kFloat32, nccl::RedOp::kSum),
        ReturnCode::kInvalidUsage);
    EXPECT_EQ(self.State(), ReturnCode::kInProgress);
    EXPECT_EQ(self.Await(), ReturnCode::kSuccess);
    EXPECT_TRUE(self.stream.Synchronize().ok());
  });
  EXPECT_EQ(nccl.Get(FakeNcclCount::kMisuses), 2);
}

// 1/3 is too large in bfloat16, and every element is multiplied by it. This is
// what the sums of our own are for.
TEST(FakeNcclLibrary, AveragesAreOffAsNcclsAre) {
  FakeNccl nccl;
  constexpr std::size_t kCount = 3000;
  RunCallers(&nccl, 3, [&](const Caller& self) {
    Elements ones(DType::kBFloat16, kCount);
    for (std::size_t i = 0; i < kCount; ++i) ones.Set(i, 96);
    const DeviceMemory memory = Upload(self, ones);
    self.Sum(memory.get(), kCount, nccl::DataType::kBfloat16,
             nccl::RedOp::kAvg);
    EXPECT_EQ(self.Await(), ReturnCode::kSuccess);
    EXPECT_TRUE(self.stream.Synchronize().ok());
    Elements seen(DType::kBFloat16, kCount);
    NcclRank::Download(memory, &seen);
    for (std::size_t i = 0; i < kCount; ++i) {
      ASSERT_NEAR(seen.Get(i) / 96, 1.002, 0.0021) << i;
      ASSERT_NE(seen.Get(i), 0);
    }
  });
}

// Sums depend on where their ring begins, as every block's does elsewhere.
TEST(FakeNcclLibrary, RingsBeginAtDifferentRanks) {
  FakeNccl nccl;
  std::vector<double> seen[2];
  for (const int first : {0, 1}) {
    nccl.Set(FakeNcclMode::kFirstRank, first);
    RunCallers(&nccl, 3, [&](const Caller& self) {
      Elements mine(DType::kFloat16, 3);
      // 2048 + 1 is 2048, but 1 + 1 + 2048 is 2050.
      for (std::size_t i = 0; i < 3; ++i)
        mine.Set(i, self.rank == 0 ? 2048 : 1);
      const DeviceMemory memory = Upload(self, mine);
      self.Sum(memory.get(), 3, nccl::DataType::kFloat16, nccl::RedOp::kSum);
      EXPECT_EQ(self.Await(), ReturnCode::kSuccess);
      EXPECT_TRUE(self.stream.Synchronize().ok());
      NcclRank::Download(memory, &mine);
      if (self.rank != 0) return;
      for (std::size_t i = 0; i < 3; ++i) seen[first].push_back(mine.Get(i));
    });
  }
  EXPECT_EQ(seen[0], (std::vector<double>{2048, 2050, 2048}));
  EXPECT_EQ(seen[1], (std::vector<double>{2050, 2048, 2048}));
}

TEST(FakeNcclLibrary, RanksWhoseCallsDifferAllFail) {
  FakeNccl nccl;
  RunCallers(&nccl, 3, [&](const Caller& self) {
    const DeviceMemory memory = Upload(self, Elements(DType::kFloat32, 6));
    self.Sum(memory.get(), self.rank == 2 ? 6 : 5, nccl::DataType::kFloat32,
             nccl::RedOp::kSum);
    ReturnCode state = self.Await();
    while (state == ReturnCode::kSuccess) state = self.State();
    EXPECT_EQ(state, ReturnCode::kInvalidUsage);
    self.Abort();
    EXPECT_TRUE(self.stream.Synchronize().ok());
  });
  EXPECT_EQ(nccl.Get(FakeNcclCount::kMismatches), 1);
}

// A group is one piece of work: messages in any order, calls in theirs.
TEST(FakeNcclLibrary, GroupsRunTogetherAndEndWithTheErrorOfACallInThem) {
  FakeNccl nccl;
  RunCallers(&nccl, 2, [&](const Caller& self) {
    const NcclApi& api = self.api;
    const DeviceMemory memory = Upload(self, Elements(DType::kFloat32, 8));
    const int peer = 1 - self.rank;
    const auto send = [&](int to) {
      return api.send(memory.get(), 4, nccl::DataType::kFloat32, to, self.comm,
                      self.stream.native());
    };
    EXPECT_EQ(send(peer), ReturnCode::kInvalidUsage);  // Outside of a group.
    EXPECT_EQ(api.group_start(), ReturnCode::kSuccess);
    EXPECT_EQ(send(7), ReturnCode::kInvalidArgument);
    EXPECT_EQ(api.group_end(), ReturnCode::kInvalidArgument);
    EXPECT_EQ(api.group_start(), ReturnCode::kSuccess);
    EXPECT_EQ(send(peer), ReturnCode::kSuccess);
    EXPECT_EQ(
        self.Sum(memory.get(), 1, nccl::DataType::kFloat32, nccl::RedOp::kSum),
        ReturnCode::kSuccess);
    EXPECT_EQ(api.recv(memory.get() + 16, 4, nccl::DataType::kFloat32, peer,
                       self.comm, self.stream.native()),
              ReturnCode::kSuccess);
    EXPECT_EQ(api.group_end(), ReturnCode::kInProgress);
    EXPECT_EQ(self.Await(), ReturnCode::kSuccess);
    EXPECT_TRUE(self.stream.Synchronize().ok());
  });
  EXPECT_EQ(nccl.Get(FakeNcclCount::kCollectives), 2);
  EXPECT_EQ(nccl.Get(FakeNcclCount::kMisuses), 2);
}

}  // namespace
}  // namespace gradientflow::testing
