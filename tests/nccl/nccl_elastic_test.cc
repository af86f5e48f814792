#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gradientflow/nccl/nccl_comm.h"
#include "tests/nccl/nccl_ranks.h"

// Communicators whose members change.
namespace gradientflow::testing {
namespace {

using nccl::ReturnCode;

constexpr int kRanks = 4;

void Await(NcclComm& comm) {
  while (true) {
    const Result<bool> ready = comm.Ready();
    ASSERT_TRUE(ready.ok()) << ready.status().ToString();
    if (ready.value()) return;
    std::this_thread::yield();
  }
}

// A rank with a communicator of its own, a device and a stream.
struct Member {
  int rank;
  FakeDevice& device;
  Stream& stream;
  std::unique_ptr<NcclComm> comm;

  // What the ranks of `other` add up to if each brings 1.
  double Count(NcclComm& other) const {
    Result<DeviceMemory> memory = device.Allocate(sizeof(float));
    EXPECT_TRUE(memory.ok());
    auto* value = reinterpret_cast<float*>(memory.value().get());
    *value = 1;
    EXPECT_TRUE(other
                    .Check("ncclAllReduce",
                           other.api().all_reduce(
                               value, value, 1, nccl::DataType::kFloat32,
                               nccl::RedOp::kSum, other.get(), stream.native()))
                    .ok());
    Await(other);
    EXPECT_TRUE(stream.Synchronize().ok());
    return *value;
  }
  void Close(NcclComm& other) const {
    EXPECT_TRUE(other.Finalize().ok());
    Await(other);
    other.Destroy();
  }
};

class NcclElastic : public ::testing::Test {
 protected:
  NcclElastic() {
    nccl_.Set(FakeNcclMode::kVersion, 22900);
    Result<std::shared_ptr<const NcclApi>> api = LoadNccl(kFakeNcclPath);
    EXPECT_TRUE(api.ok());
    api_ = std::move(api).value();
  }

  // Runs a thread for each of `ranks`; those below kRanks have a communicator.
  void Run(int ranks, const std::function<void(Member&)>& body) {
    nccl::UniqueId id;
    ASSERT_EQ(api_->get_unique_id(&id), ReturnCode::kSuccess);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < ranks; ++rank) {
      threads.emplace_back([&, rank] {
        FakeOptions options;
        options.id.index = rank;
        FakeDevice device(options);
        Result<std::unique_ptr<Stream>> stream = device.NewStream(true);
        ASSERT_TRUE(stream.ok());
        Member self{rank, device, *stream.value(), nullptr};
        const Status ran = device.RunCurrent([&]() -> Status {
          if (rank < kRanks) {
            self.comm = std::make_unique<NcclComm>(api_, rank, kRanks);
            GF_RETURN_IF_ERROR(self.comm->Begin(id));
            Await(*self.comm);
          }
          body(self);
          return Status();
        });
        EXPECT_TRUE(ran.ok()) << ran.ToString();
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(nccl_.Get(FakeNcclCount::kMisuses), 0);
  }

  FakeNccl nccl_;
  std::shared_ptr<const NcclApi> api_;
};

TEST_F(NcclElastic, ShrinkingLeavesRanksOutAndKeepsTheOrder) {
  Run(kRanks, [](Member& self) {
    if (self.rank == 1) return self.Close(*self.comm);
    Result<std::unique_ptr<NcclComm>> made =
        self.comm->Shrink({1}, nccl::ShrinkFlag::kDefault);
    ASSERT_TRUE(made.ok()) << made.status().ToString();
    Await(*self.comm);
    Await(*made.value());
    EXPECT_EQ(made.value()->size(), 3);
    EXPECT_EQ(made.value()->rank(), self.rank - (self.rank > 1 ? 1 : 0));
    EXPECT_EQ(self.Count(*made.value()), 3);
    self.Close(*made.value());
    self.Close(*self.comm);
  });
}

// NCCL writes the handle of each child when all of them have come.
TEST_F(NcclElastic, ChildrenThatAreDroppedBeforeTheyAreThereAreAborted) {
  Run(kRanks, [&](Member& self) {
    if (self.rank != 1) {
      Result<std::unique_ptr<NcclComm>> made =
          self.comm->Shrink({1}, nccl::ShrinkFlag::kDefault);
      ASSERT_TRUE(made.ok()) << made.status().ToString();
      made.value().reset();
    }
    while (nccl_.Get(FakeNcclCount::kAborted) < kRanks - 1) {
      const Result<bool> ready = self.comm->Ready();
      ASSERT_TRUE(ready.ok()) << ready.status().ToString();
      std::this_thread::yield();
    }
    Await(*self.comm);
    self.Close(*self.comm);
  });
}

// A rank is gone in the middle of a call, which would never end.
TEST_F(NcclElastic, RevokedCallsEndAndTheOthersGoOn) {
  for (const bool revoke : {true, false}) {
    Run(kRanks, [&](Member& self) {
      if (self.rank == 3) return self.Close(*self.comm);
      Result<DeviceMemory> memory = self.device.Allocate(sizeof(float));
      ASSERT_TRUE(memory.ok());
      NcclComm& comm = *self.comm;
      ASSERT_EQ(
          comm.api().all_reduce(memory.value().get(), memory.value().get(), 1,
                                nccl::DataType::kFloat32, nccl::RedOp::kSum,
                                comm.get(), self.stream.native()),
          ReturnCode::kInProgress);
      Await(comm);
      if (revoke) {
        ASSERT_TRUE(comm.Revoke().ok());
        Await(comm);
      }
      Result<std::unique_ptr<NcclComm>> made = comm.Shrink(
          {3}, revoke ? nccl::ShrinkFlag::kDefault : nccl::ShrinkFlag::kAbort);
      ASSERT_TRUE(made.ok()) << made.status().ToString();
      EXPECT_TRUE(self.stream.Synchronize().ok());
      Await(comm);
      Await(*made.value());
      EXPECT_EQ(self.Count(*made.value()), 3);
      self.Close(*made.value());
      if (!revoke) return self.Close(comm);
      EXPECT_EQ(comm.Finalize().code(), StatusCode::kFailedPrecondition);
      comm.Destroy();
    });
  }
}

TEST_F(NcclElastic, GrowingAddsRanksBehindThoseThatAreHere) {
  nccl::UniqueId id;
  std::atomic<bool> there{false};
  Run(kRanks + 2, [&](Member& self) {
    constexpr int kGrown = kRanks + 2;
    std::unique_ptr<NcclComm> grown;
    if (self.rank == 2) {
      Result<nccl::UniqueId> made = self.comm->GrowthId();
      ASSERT_TRUE(made.ok()) << made.status().ToString();
      id = made.value();
      there = true;
    }
    while (!there) std::this_thread::yield();
    if (self.comm != nullptr) {
      Result<std::unique_ptr<NcclComm>> made =
          self.comm->Grow(kGrown, self.rank == 2 ? &id : nullptr);
      ASSERT_TRUE(made.ok()) << made.status().ToString();
      Await(*self.comm);
      grown = std::move(made).value();
    } else {
      grown = std::make_unique<NcclComm>(api_, self.rank, kGrown);
      ASSERT_TRUE(grown->BeginInGrowth(id).ok());
    }
    Await(*grown);
    EXPECT_EQ(grown->rank(), self.rank);
    EXPECT_EQ(self.Count(*grown), kGrown);
    self.Close(*grown);
    if (self.comm != nullptr) self.Close(*self.comm);
  });
}

TEST_F(NcclElastic, OlderLibrariesSayWhichVersionHasTheCall) {
  struct Case {
    int version;
    bool shrinks, revokes, grows;
  };
  for (const Case& c :
       {Case{22605, false, false, false}, Case{22700, true, false, false},
        Case{22806, true, false, false}, Case{22807, true, true, false},
        Case{22900, true, true, true}}) {
    nccl_.Set(FakeNcclMode::kVersion, c.version);
    const auto api = LoadNccl(kFakeNcclPath);
    ASSERT_TRUE(api.ok());
    EXPECT_EQ(api.value()->comm_shrink != nullptr, c.shrinks) << c.version;
    EXPECT_EQ(api.value()->comm_revoke != nullptr, c.revokes) << c.version;
    EXPECT_EQ(api.value()->comm_grow != nullptr, c.grows) << c.version;
  }
  nccl_.Set(FakeNcclMode::kVersion, 22605);
  NcclComm comm(LoadNccl(kFakeNcclPath).value(), 0, 2);
  for (const auto& [status, version] :
       {std::pair(comm.Revoke(), "2.28.7"),
        std::pair(comm.Shrink({1}, nccl::ShrinkFlag::kDefault).status(),
                  "2.27"),
        std::pair(comm.GrowthId().status(), "2.29"),
        std::pair(comm.Grow(3, nullptr).status(), "2.29"),
        std::pair(comm.BeginInGrowth({}), "2.29")}) {
    EXPECT_EQ(status.code(), StatusCode::kUnimplemented);
    EXPECT_NE(status.message().find(version), std::string::npos)
        << status.ToString();
    EXPECT_NE(status.message().find("2.26.5"), std::string::npos);
  }
}

TEST_F(NcclElastic, WrongMembersAreRefused) {
  NcclComm comm(api_, 1, 3);
  for (const std::vector<int>& out :
       {std::vector<int>{}, {1}, {3}, {-1}, {0, 0}}) {
    EXPECT_EQ(comm.Shrink(out, nccl::ShrinkFlag::kDefault).status().code(),
              StatusCode::kInvalidArgument);
  }
  EXPECT_EQ(comm.Grow(3, nullptr).status().code(),
            StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace gradientflow::testing
