#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "tests/nccl/nccl_suite.h"
#include "tests/nccl/nccl_trouble.h"

// One call of NCCL on one rank fails or hangs, whichever it is: everything
// ends on all ranks, with right results or a reason.
namespace gradientflow::testing {
namespace {

using kernels::testing::Elements;
using std::chrono::milliseconds;

constexpr int kRanks = 3;
// More elements than one phase takes, and fewer.
constexpr std::size_t kCounts[] = {40000, 50};
// More calls than a rank makes of NCCL.
constexpr int kMostCalls = 200;

class NcclAnyCall : public NcclFailure {
 protected:
  // Does what a session does, with call number `nth` of `rank` in trouble.
  // Returns whether there was such a call.
  bool RunWith(FakeNcclMode trouble, int rank, int nth);

 private:
  void Tell(const Status& why) {
    if (!why.ok()) over_ = true;
  }
  void RunRank(NcclRank& self);
  void RunCall(NcclRank& self, CollectiveCall call);
  void Pass() {
    if (over_ || nccl_.Get(FakeNcclCount::kTroubles) > 0) {
      clock_.Advance(milliseconds(10));
    }
  }

  // As a session's, it ends if a rank fails before the others have heard of it.
  Status Broadcast(int rank, void* data, std::size_t bytes) {
    for (; !over_; std::this_thread::yield()) {
      const std::lock_guard lock(mutex_);
      const auto* begin = static_cast<const std::byte*>(data);
      if (rank == 0) invitation_.assign(begin, begin + bytes);
      if (invitation_.empty()) continue;
      std::memcpy(data, invitation_.data(), bytes);
      return Status();
    }
    return Status(StatusCode::kUnavailable, "a rank failed");
  }

  std::mutex mutex_;
  std::vector<std::byte> invitation_;
  std::atomic<bool> over_{false};  // What the session would tell all ranks.
  std::atomic<int> failed_{0};
};

void NcclAnyCall::RunCall(NcclRank& self, CollectiveCall call) {
  const std::vector<Elements> inputs =
      Inputs(kRanks, call.dtype, call.count, 3);
  const DeviceMemory memory = self.Upload(inputs[self.rank]);
  static_cast<void>(
      self.collective.Register(memory.get(), call.count * SizeOf(call.dtype)));
  call.output = memory.get();
  Outcome outcome;
  self.collective.Start(call, outcome.done());
  while (!outcome.ended) {
    if (over_) {
      self.collective.Fail(Status(StatusCode::kUnavailable, "a rank failed"));
    }
    if (!self.collective.Poll()) std::this_thread::yield();
    Pass();
  }
  self.collective.Deregister(memory.get());
  if (!outcome.status.ok()) {
    ++failed_;
    EXPECT_FALSE(outcome.status.message().empty());
    return Tell(outcome.status);
  }
  Elements seen(call.dtype, call.count);
  NcclRank::Download(memory, &seen);
  for (std::size_t i = 0; i < call.count; i += 7) {
    ASSERT_TRUE(IsReduced(call, inputs, i, seen, i)) << Describe(call);
  }
}

void NcclAnyCall::RunRank(NcclRank& self) {
  for (const std::size_t count : kCounts) {
    for (const DType type : {DType::kFloat32, DType::kFloat16}) {
      CollectiveCall call = Call(CollectiveKind::kAllreduce, type, count);
      call.op = ReduceOp::kMean;
      call.scale = 0.5F;
      RunCall(self, call);
      if (!self.collective.status().ok()) return;
    }
  }
}

bool NcclAnyCall::RunWith(FakeNcclMode trouble, int rank, int nth) {
  over_ = false;
  invitation_.clear();
  failed_ = 0;
  FakeNccl fresh;  // Resets modes and counts.
  nccl_.Set(FakeNcclMode::kTroubledRank, rank);
  nccl_.Set(trouble, nth);
  NcclJob job = Job(kRanks);
  job.adjust = [this, before = job.adjust](int r, NcclArgs* args) {
    before(r, args);
    args->broadcast = [this, r](void* data, std::size_t bytes) {
      return Broadcast(r, data, bytes);
    };
    args->staging_bytes = 1;
    args->timeout_seconds = 5;
    args->while_waiting = [this] {
      Pass();
      std::this_thread::yield();
      return over_ ? Status(StatusCode::kUnavailable, "a rank failed")
                   : Status();
    };
  };
  CreateNcclRanks(job, [this](int r, FakeDevice& device, auto made) {
    Tell(made.status());
    if (!made.ok()) {
      ++failed_;
      return;
    }
    NcclRank self{r, device, *made.value()};
    RunRank(self);
    Tell(self.collective.status());
  });
  EXPECT_EQ(nccl_.Get(FakeNcclCount::kMisuses), 0);
  if (nccl_.Get(FakeNcclCount::kTroubles) > 0) return true;
  EXPECT_EQ(failed_, 0);
  return false;
}

TEST_F(NcclAnyCall, ThatFailsEndsEverythingOrNothing) {
  for (const int rank : {0, 2}) {
    int nth = 1;
    while (nth < kMostCalls && RunWith(FakeNcclMode::kFailCall, rank, nth)) {
      if (HasFailure()) FAIL() << "call " << nth << " of rank " << rank;
      ++nth;
    }
    EXPECT_GT(nth, 40);
    EXPECT_LT(nth, kMostCalls);
  }
}

TEST_F(NcclAnyCall, ThatHangsEndsEverything) {
  int nth = 1;
  while (nth < kMostCalls && RunWith(FakeNcclMode::kHangCall, 1, nth)) {
    if (HasFailure()) FAIL() << "call " << nth;
    ++nth;
  }
  EXPECT_GT(nth, 8);
  EXPECT_LT(nth, kMostCalls);
}

}  // namespace
}  // namespace gradientflow::testing
